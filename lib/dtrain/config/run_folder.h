// The folder a run writes to.
#pragma once

#include <string>

#include "dtrain/config/config.h"

namespace dtrain::config {

/// Refuses a folder that cannot become this run's: one that holds a run needs run.overwrite, or a
/// resume from what it holds. Changes nothing.
///
/// Throws: Error{usage} naming the folder: not given, no folder, not writable, holding a run, or
/// with
///         a link in place of one of its own folders.
void check_run_folder(const Config& config);

}  // namespace dtrain::config
