// Flags of one subcommand.
#pragma once

#include <string>
#include <vector>

#include "dtrain/config/input/file.h"
#include "dtrain/config/schema/schema.h"

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
  std::string config_file;     ///< empty: none
  std::string deepspeed_file;  ///< of --deepspeed-config; empty: none
  /// Of with_deepspeed: dotted keys of the file that have no part in it.
  std::vector<std::string> deepspeed_unused;
  std::size_t num_of_deepspeed = 0;  ///< its settings, at the front of the assignments
  std::vector<Assignment> assignments;
  std::vector<std::string> repeated;  ///< a line for each flag that is given several times
  bool print_config = false;
  bool quiet = false;    ///< train and what takes its flags
  bool verbose = false;  ///< likewise

  /// True if a flag gives this setting, or after with_deepspeed the file.
  [[nodiscard]] bool gives(std::string_view key) const;
};

/// Adds the flags of `command` to `app`: those of the settings that it takes, and of files.
void add_settings(CLI::App& app, Command command);

/// The flags that an app of add_settings has parsed. Reads no file.
///
/// Throws: Error{usage}: an unknown key (with the nearest name), two different --data, a path that
///         begins with ~. Values are checked by load().
[[nodiscard]] CommandLine parsed_settings(const CLI::App& app, Command command);

/// The same with what its DeepSpeed file asks for, before the flags, which win over it. A value
/// "auto" is as if not given (deepspeed_config.cpp).
///
/// Throws: Error{usage} naming file and key: unreadable, not JSON, a value of another type, or
///         something that would train another model here (an optimizer, scheduler or sharding that
///         dtrain does not have).
[[nodiscard]] CommandLine with_deepspeed(CommandLine command_line);

/// base < files < flags; of repeated flags the last wins. What a layer gives also replaces what it
/// excludes in the layers below. What a file sets and the command does not use stays at its
/// default.
///
/// Throws: Error{usage} naming the file or flag of a wrong value.
[[nodiscard]] Loaded load(const CommandLine& command_line, const Config& base = {});

}  // namespace dtrain::config
