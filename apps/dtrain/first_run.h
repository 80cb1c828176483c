// Default flags for validation, saving and samples of a command that gives --data alone.
#pragma once

#include <string>

#include "commands.h"

namespace dtrain::app {

/// Default flags that show a run's progress, and a notice that lists them.
struct DemoDefaults {
  Arguments flags;     ///< those that the command does not set
  std::string notice;  ///< one line for the user; empty: no defaults apply
};

/// Chooses the defaults for the arguments of `train`, which need not be valid. A configuration file
/// describes a complete run: with --config, the notice only lists the missing flags for validation
/// and saving. A resumed run keeps its share of validation data.
///
/// Throws: Error{usage} as config::parse_command_line and config::load.
[[nodiscard]] DemoDefaults demo_defaults(const Arguments& arguments);

}  // namespace dtrain::app
