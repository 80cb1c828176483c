// Paths of --resume and --init-from, looked at before LibTorch is loaded.
#pragma once

#include "dtrain/config/config.h"

namespace dtrain::app {

/// Refuses paths that cannot be what the flags need, so that they are not taken for damaged
/// checkpoints. What is in a checkpoint is examined later.
///
/// Throws: Error{checkpoint} naming the flag, the path, what it is and what to give.
void check_start_paths(const config::Config& config);

}  // namespace dtrain::app
