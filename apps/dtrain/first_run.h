// The flags added to a command that gives only --data.
#pragma once

#include <string>

#include "commands.h"

namespace dtrain::app {

/// Flags that show a first run's progress, and the notice that names them.
struct FirstRun {
  Arguments flags;     ///< empty: the command says more than its data, run folder and machine
  std::string notice;  ///< for people
};

/// Looks at the arguments of `train`, which need not be right.
[[nodiscard]] FirstRun first_run(const Arguments& arguments);

}  // namespace dtrain::app
