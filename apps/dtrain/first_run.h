// The flags of validation, saving and samples that a command of --data gets if it gives none.
#pragma once

#include <string>

#include "commands.h"

namespace dtrain::app {

/// Flags that show a run's progress, and a line about them.
struct DemoDefaults {
  Arguments flags;     ///< those that the command does not give itself
  std::string notice;  ///< for people; empty: there is nothing to say
};

/// Looks at the arguments of `train`, which need not be right. A configuration file describes a
/// whole run, so beside --config the flags are only named, where nothing is said of validation or
/// saving. A run that resumes is given the share of validation data that it has had.
///
/// Throws: Error{usage} as config::parse_command_line and config::load.
[[nodiscard]] DemoDefaults demo_defaults(const Arguments& arguments);

}  // namespace dtrain::app
