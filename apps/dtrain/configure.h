// From arguments to a resolved configuration, with default flags for commands that give --data alone.
#pragma once

#include <optional>
#include <string>

#include "commands.h"
#include "dtrain/base/rank_env.h"
#include "dtrain/config/resolve/resolve.h"

namespace dtrain::app {

/// Adds default flags that show a run's progress to a command line of `train` or `doctor`, each
/// unless a flag or file gives its setting; returns a line for the user that lists them, empty
/// where there are none. A configuration file gets none: the line lists those that it lacks. A
/// command that resumes or forks a run has the run's.
///
/// Throws: Error{usage} as config::load.
[[nodiscard]] std::string take_demo_defaults(config::CommandLine& command_line);

struct Configured {
  config::Config config = {};  ///< resolved
  config::Loaded loaded = {};  ///< what it was resolved from
  base::RankEnv env = {};
  config::Launch launch = {};
  std::string strategy = {};  ///< a line about ranks that got a strategy; empty: they had one
  std::string origin = {};    ///< the file of the resumed run that settings come from; empty: none
  std::string notice = {};    ///< a line about these settings; empty: none
  bool is_quiet = false;      ///< --quiet: of rank 0 nothing is told but warnings and errors
  bool is_verbose = false;
  bool has_file = false;  ///< settings come from --config, or from the run that is resumed
};

/// Reads files and environment, too. Nothing is returned where --print-config was asked for, which
/// it answers.
///
/// Throws: Error{usage} for whatever is wrong with them.
[[nodiscard]] std::optional<Configured> configure(const config::CommandLine& command_line);

/// Tells on rank 0 what a user should know of settings that are allowed.
void warn(config::Command command, const Configured& configured);

}  // namespace dtrain::app
