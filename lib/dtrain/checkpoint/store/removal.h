// Decides what dtrain may remove or replace in a run folder: what it wrote.
#pragma once

#include <string>
#include <string_view>

#include "dtrain/base/io/file_system.h"

namespace dtrain::checkpoint::store {

enum class FolderKind {
  checkpoint,  ///< committed or set aside: its manifest marks it as ours
  unfinished   ///< half written or half removed: its manifest may be missing or cut short
};

/// Returns why `folder` must not be removed: it is a link, no folder, not marked as ours, or holds
/// something that dtrain did not write. Empty: it may go. Looks at names and at the manifest's
/// first bytes, and follows no link.
///
/// Throws: Error{checkpoint} naming the folder or file if it cannot be read.
[[nodiscard]] std::string why_kept(const std::string& folder, FolderKind kind);

/// Removes an unfinished folder; one that does not exist is no error.
///
/// Throws: what `files` throws; Error{checkpoint} naming the folder if it must stay: nothing of it
///         is removed then.
void remove_folder_and_files(base::FileSystem& files, const std::string& folder);

/// Refuses a run folder in which dtrain would replace or remove what it did not write: looks for
/// the marks that every build has left in config.json, metrics.jsonl and final/model.safetensors. A
/// file that is empty or missing is no loss.
///
/// flag: what would replace them, for the message.
/// Throws: Error{usage} naming the file, and what to do.
void check_run_files(const std::string& run_dir, std::string_view flag);

}  // namespace dtrain::checkpoint::store
