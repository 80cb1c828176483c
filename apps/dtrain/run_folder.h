// The folder a run writes to.
#pragma once

#include <string>

namespace dtrain::app {

/// Refuses a folder that cannot become this run's. Changes nothing.
///
/// Throws: Error{usage} naming the folder: not given, no folder, not writable, or holding a run
///         while `overwrite` is off.
void check_run_folder(const std::string& folder, bool overwrite);

/// Creates the folder, or removes the run that it holds: the files that dtrain writes, nothing
/// else. After check_run_folder.
///
/// Throws: Error{usage} naming the path and reason.
void prepare_run_folder(const std::string& folder);

}  // namespace dtrain::app
