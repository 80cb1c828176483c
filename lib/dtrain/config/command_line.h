// Flags of one subcommand.
#pragma once

#include <string>
#include <vector>

#include "dtrain/config/schema.h"

namespace CLI {
class App;
}

namespace dtrain::config {

/// One flag or --set, in the order given.
struct Assignment {
  const Setting* setting;
  std::string text;
  std::string origin;  ///< "--width", "--set model.width"
};

struct CommandLine {
  Command command = Command::train;
  std::string config_file;                    ///< empty: none
  std::string deepspeed_file;                 ///< of --deepspeed-config; empty: none
  std::vector<std::string> deepspeed_unused;  ///< its keys that mean nothing here
  std::size_t num_of_deepspeed = 0;           ///< its settings, at the front of the assignments
  std::vector<Assignment> assignments;
  std::vector<std::string> repeated;  ///< a line for each flag that is given several times
  bool print_config = false;
  bool quiet = false;  ///< train and what takes its flags
  bool help = false;
};

/// Reads the arguments after the subcommand's name. Words of a flag may be joined by _ as well.
/// What a DeepSpeed file asks for stands before all flags.
///
/// Throws: Error{usage}: an unknown flag or key (with the nearest name), a flag of another command,
///         a missing value, two different --data, words that are no flags. Values are checked by
///         load().
[[nodiscard]] CommandLine parse_command_line(Command command,
                                             const std::vector<std::string>& arguments);

/// "--batch_size=8" as "--batch-size=8" where that is a flag of `app`; any other word as it is.
[[nodiscard]] std::string with_dashes(const CLI::App& app, const std::string& word);

/// A configuration as the user asked for it, before anything is resolved.
struct Loaded {
  Config config;
  std::vector<std::string> unused;    ///< keys of the file that the command does not use
  std::vector<const Setting*> given;  ///< by files and flags, some perhaps several times
  /// "--val-fraction 0.1 replaces --val-data FILE": settings of lower layers that exclude
  /// those of higher ones (rivals.h).
  std::vector<std::string> replaced = {};
};

/// base < files < flags; of repeated flags the last wins. What a layer gives also replaces what it
/// excludes in the layers below. What a file sets and the command does not use stays at its
/// default.
///
/// Throws: Error{usage} naming the file or flag of a wrong value.
[[nodiscard]] Loaded load(const CommandLine& command_line, const Config& base = {});

}  // namespace dtrain::config
