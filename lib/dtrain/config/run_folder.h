// The folder a run writes to.
#pragma once

#include <string>

#include "dtrain/config/config.h"

namespace dtrain::config {

/// Refuses a folder that cannot become this run's. Changes nothing.
///
/// Throws: Error{usage} naming the folder: not given, no folder, not writable, or holding a run
///         while `overwrite` is off.
void check_run_folder(const RunConfig& run);

/// Makes the folder this run's: creates it, with `overwrite` removes the run that it holds (the
/// files that dtrain writes, nothing else), and writes config.json, which marks it as taken: of two
/// runs that come at the same time one is refused. The saved configuration does not overwrite.
///
/// Throws: Error{usage} as check_run_folder, or naming the path that cannot be written.
void claim_run_folder(const Config& config);

}  // namespace dtrain::config
