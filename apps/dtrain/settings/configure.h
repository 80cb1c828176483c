// Loads and resolves the configuration of a command line, including the demo defaults.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "commands.h"
#include "dtrain/base/rank_env.h"
#include "dtrain/config/resolve/resolve.h"

namespace dtrain::app {

/// Adds the demo defaults (flags for validation, checkpoints and samples; docs/guide/habits.md) to
/// a command line of train, doctor or plan, except for settings that are given. Returns a line for
/// the user that lists them; empty if none are added. With --config it adds none, and the line
/// lists those that the file lacks. A command that resumes or forks a run inherits the run's
/// settings instead.
///
/// Throws: Error{usage} as config::load.
[[nodiscard]] std::string add_demo_defaults(config::CommandLine& command_line);

struct Configured {
  config::Config config = {};          ///< resolved
  config::LoadedSettings loaded = {};  ///< before resolve()
  base::RankEnv env = {};
  config::Launch launch = {};
  std::vector<const config::Setting*> flags = {};  ///< settings that the command line gives
  std::string strategy = {};  ///< notice about a default strategy; empty if none was applied
  std::string origin = {};    ///< the resumed run's file that settings come from; may be empty
  std::string notice = {};    ///< notice about these settings; may be empty
  std::string match = {};     ///< notice about --match; may be empty
  bool is_quiet = false;      ///< --quiet: prints only warnings and errors
  bool is_verbose = false;
  bool has_file = false;  ///< settings come from --config, --match or a resumed run
};

/// Loads files, reads the environment and resolves the configuration. With --print-config it prints
/// the configuration and returns nothing.
///
/// Throws: Error{usage} naming the invalid setting, file or variable; as data::vocab_of_data,
///         initial_model and adopt_model_settings.
[[nodiscard]] std::optional<Configured> configure(const config::CommandLine& command_line);

/// Logs notices and warnings about valid settings, on rank 0 only.
void warn(config::Command command, const Configured& configured);

}  // namespace dtrain::app
