// The folder a run writes to.
#pragma once

#include <string>
#include <vector>

#include "dtrain/base/io/file_system.h"
#include "dtrain/config/config.h"

namespace dtrain::config {

/// Throws: Error{usage} if the run folder is not given where only a given one makes sense.
void check_run_dir_named(const Config& config);

/// Refuses a folder that cannot become this run's: one that holds a run needs run.overwrite, or a
/// resume from what it holds. Changes nothing.
///
/// Throws: Error{usage} naming the folder: no folder, not writable, holding a run, with a link in
///         place of one of its own folders.
void check_run_folder(const Config& config);

/// The flag that has a start replace files that are in the run folder, for messages: "--overwrite",
/// or "--resume auto".
[[nodiscard]] std::string replacing_flag(const Config& config);

/// run.dir; where it is empty a new folder, made here: runs/NAME-N with the name of the training
/// data and the first number that is free, so that no two runs take the same. made: receives the
/// created folders.
///
/// Throws: Error{usage} naming the folder that cannot be made.
[[nodiscard]] std::string named_run_folder(const Config& config, base::NewFolders& made);

/// The folders that named_run_folder may have made for such a command, and others of such names.
[[nodiscard]] std::vector<std::string> unnamed_run_folders(const Config& config);

}  // namespace dtrain::config
