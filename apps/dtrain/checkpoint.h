// The tools of `dtrain checkpoint`. Each takes the arguments after its name and returns the exit
// status; errors are thrown.
#pragma once

#include "commands.h"

namespace dtrain::app {

[[nodiscard]] int list_checkpoints(const Arguments& arguments);
[[nodiscard]] int inspect_checkpoint(const Arguments& arguments);
[[nodiscard]] int verify_checkpoints(const Arguments& arguments);
[[nodiscard]] int diff_checkpoints(const Arguments& arguments);
[[nodiscard]] int export_checkpoint(const Arguments& arguments);
[[nodiscard]] int import_checkpoint(const Arguments& arguments);

}  // namespace dtrain::app
