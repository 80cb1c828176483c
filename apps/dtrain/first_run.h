// Default flags for validation, saving and samples of a command that gives --data alone.
#pragma once

#include <string>

#include "commands.h"
#include "dtrain/config/schema.h"

namespace dtrain::app {

/// Arguments with default flags that show a run's progress, and a notice that lists these.
struct DemoDefaults {
  Arguments arguments;      ///< default flags that the command does not set, then its own
  std::string notice = {};  ///< one line for the user; empty: no defaults apply
};

/// Chooses the defaults for arguments of `train` or `doctor`, which need not be valid. A
/// configuration file describes a complete run: with --config, the notice only lists the missing
/// flags for validation and saving. A resumed run keeps its share of validation data.
///
/// Throws: Error{usage} as config::parse_command_line and config::load.
[[nodiscard]] DemoDefaults with_demo_defaults(config::Command command, const Arguments& arguments);

}  // namespace dtrain::app
