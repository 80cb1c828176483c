// Chooses, checks and creates the run folder.
#pragma once

#include <string>
#include <vector>

#include "dtrain/base/io/file_system.h"
#include "dtrain/config/config.h"

namespace dtrain::config {

/// Checks that --run-dir is given if --overwrite or --resume auto is.
///
/// Throws: Error{usage} otherwise.
void require_run_dir(const Config& config);

/// Checks that the run can write to its folder. A folder that contains a run requires run.overwrite,
/// or a resume from that run. Changes nothing.
///
/// Throws: Error{usage} naming the folder: not a folder, not writable, contains a run, or one of its
///         subfolders is a link.
void check_run_folder(const Config& config);

/// The flag that allows a start to replace files in the run folder, for messages: "--overwrite" or
/// "--resume auto".
[[nodiscard]] std::string overwriting_flag(const Config& config);

/// Returns run.dir; if it is empty, creates and returns runs/NAME-N: NAME from the training data, N
/// the first free number, so that concurrent runs get different folders. made: receives the created
/// folders.
///
/// Throws: Error{usage} naming the folder that cannot be created.
[[nodiscard]] std::string create_run_folder(const Config& config, base::NewFolders& made);

/// Existing folders with names that create_run_folder could have chosen for such a configuration.
[[nodiscard]] std::vector<std::string> default_run_folders(const Config& config);

}  // namespace dtrain::config
