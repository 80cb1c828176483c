// What `dtrain --data FILE` alone means.
#pragma once

#include <string>

#include "commands.h"

namespace dtrain::app {

/// The flags that stand for what a first run should show, and what to say of them.
struct FirstRun {
  Arguments flags;     ///< empty: the command says more than its data, run folder and machine
  std::string notice;  ///< for people
};

/// Looks at the arguments of `train`, which need not be right.
[[nodiscard]] FirstRun first_run(const Arguments& arguments);

}  // namespace dtrain::app
