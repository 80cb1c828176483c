// Default flags for validation, saving and samples of a command that gives --data alone.
#pragma once

#include <string>

#include "dtrain/config/command_line.h"

namespace dtrain::app {

/// Adds default flags that show a run's progress to a command line of `train` or `doctor`, each
/// unless a flag or file gives its setting; returns a line for the user that lists them, empty
/// where there are none. A configuration file gets none: the line lists those that it lacks. A
/// command that resumes or forks a run has the run's.
///
/// Throws: Error{usage} as config::load.
[[nodiscard]] std::string take_demo_defaults(config::CommandLine& command_line);

}  // namespace dtrain::app
