// Restricts removal and replacement in a run folder to files that dtrain wrote.
#pragma once

#include <string>
#include <string_view>

#include "dtrain/base/io/file_system.h"

namespace dtrain::checkpoint::store {

/// The expected state of a checkpoint folder.
enum class FolderKind {
  checkpoint,  ///< committed or quarantined: the manifest identifies it as dtrain's
  unfinished   ///< partly written or removed: the manifest may be missing or truncated
};

/// Returns why `folder` must not be removed: it is a link or not a folder, lacks dtrain's manifest,
/// or contains a file that dtrain did not write. Empty if it may be removed. Examines names and the
/// first bytes of the manifest; follows no links.
///
/// Throws: Error{checkpoint} naming the folder or file if it cannot be read.
[[nodiscard]] std::string reason_to_keep(const std::string& folder, FolderKind kind);

/// Removes an unfinished folder; no-op if it does not exist.
///
/// Throws: what `files` throws; Error{checkpoint} naming the folder, before anything is removed, if
///         there is a reason_to_keep.
void remove_folder_and_files(base::FileSystem& files, const std::string& folder);

/// Checks that dtrain wrote the config.json, metrics.jsonl and final/model.safetensors that a start
/// would replace; it recognises them by content that every version writes. Empty or missing files
/// are allowed.
///
/// flag:   the flag that would replace them, for the message.
/// Throws: Error{usage} naming the file and what to do.
void check_run_files(const std::string& run_dir, std::string_view flag);

}  // namespace dtrain::checkpoint::store
