// Parsing of a subcommand's flags, and loading of the files that they name.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "dtrain/config/input/file.h"
#include "dtrain/config/schema/schema.h"
#include "dtrain/config/values/values.h"

namespace CLI {
class App;
}

namespace dtrain::config {

/// A setting given by a flag or --set.
struct Assignment {
  const Setting* setting;
  std::string text;
  std::string origin;  ///< "--width", "--set model.width"
};

struct CommandLine {
  Command command = Command::train;
  std::string config_file;     ///< from --config; may be empty
  std::string deepspeed_file;  ///< from --deepspeed-config; may be empty
  std::string match = {};      ///< from --match: a run folder or configuration file; may be empty
  std::optional<MatchBy> match_by = {};  ///< from --match-by; parameters if it is not given
  /// Dotted keys of the DeepSpeed file that with_deepspeed did not use.
  std::vector<std::string> unused_deepspeed_keys;
  /// The number of leading assignments that come from the DeepSpeed file.
  std::size_t num_deepspeed_assignments = 0;
  std::vector<Assignment> assignments;  ///< in the order given
  std::vector<std::string> repeated;    ///< one line per flag that is given several times
  bool print_config = false;
  bool quiet = false;    ///< train and commands that take its flags
  bool verbose = false;  ///< likewise

  /// True if a flag gives this setting, or, after with_deepspeed, the DeepSpeed file does.
  [[nodiscard]] bool gives(std::string_view key) const;
};

/// Adds the flags of `command` to `app`: its settings, files, and output options.
void add_settings(CLI::App& app, Command command);

/// Returns the flags parsed by an app of add_settings. Reads no file.
///
/// Throws: Error{usage}: an unknown key (with the nearest name), two --data flags with different
///         values, a path that begins with ~, an unknown value of --match-by, or --match-by without
///         --match. Other values are checked by load().
[[nodiscard]] CommandLine parsed_settings(const CLI::App& app, Command command);

/// Inserts the settings of the command line's DeepSpeed file before its flags, which override them.
/// Ignores keys whose value is "auto".
///
/// Throws: Error{usage} naming file and key: unreadable, not JSON, a value of the wrong type, or an
///         optimizer, scheduler or sharding that dtrain does not support.
[[nodiscard]] CommandLine with_deepspeed(CommandLine command_line);

/// Merges `base`, files and flags; each layer overrides the ones before it, and the last of
/// repeated flags wins. A layer also resets conflicting settings of earlier layers (conflicts.h).
/// Settings in a file that the command does not use keep their defaults.
///
/// Throws: Error{usage} naming the file or flag of an invalid value.
[[nodiscard]] LoadedSettings load(const CommandLine& command_line, const Config& base = {});

}  // namespace dtrain::config
