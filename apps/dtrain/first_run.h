// The flags added to a command that gives little more than --data.
#pragma once

#include <string>

#include "commands.h"

namespace dtrain::app {

/// Flags that show a first run's progress, and the notice that names them.
struct FirstRun {
  Arguments flags;     ///< empty: the command says more of the training
  std::string notice;  ///< for people
};

/// Looks at the arguments of `train`, which need not be right, and at the number of ranks. Flags are
/// added beside --data and settings of the run folder, machine, layout and length, and --keep-best.
[[nodiscard]] FirstRun first_run(const Arguments& arguments);

}  // namespace dtrain::app
