// Copies of a run's inputs in its folder: the tokenizer of its data, and the kept files of the folder
// that its weights come from.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "dtrain/base/io/file_system.h"
#include "dtrain/checkpoint/store/kept_files.h"

namespace dtrain::job {

/// Checks that the folder can hold the tokenizer with this model. overwrite: the start removes the
/// old run's tokenizer.
///
/// Throws: Error{usage} naming a file of a different tokenizer, or one that cannot be read.
void check_tokenizer(const std::string& run_dir, std::string_view model, bool overwrite);

/// Writes the tokenizer with this model, data::files_of_tokenizer; keeps files that exist.
///
/// Throws: Error{checkpoint} naming a file that cannot be written.
void keep_tokenizer(const std::string& run_dir, std::string_view model);

/// Removes the folder's tokenizer if the old run's final model names it, except files that differ
/// from those that the old run wrote.
///
/// Throws: Error{checkpoint} naming a file that cannot be removed.
void remove_old_tokenizer(base::Disk& disk, const std::string& run_dir);

/// Replaces the files in kept_files_folder. Leaves equal files untouched: `files` may have been read
/// from there.
///
/// Throws: Error{checkpoint} naming a file that cannot be written or removed, Error{usage} naming
///         one that cannot be read.
void replace_kept_files(base::Disk& disk, const std::string& run_dir,
                        const std::vector<checkpoint::store::KeptFile>& files);

/// Removes temporary files of killed jobs.
///
/// Throws: Error{checkpoint} naming a file that cannot be removed.
void remove_temporary_copies(const std::string& run_dir);

}  // namespace dtrain::job
