// Decides what dtrain may remove in RUN/checkpoints: folders that it wrote, with nothing else
// inside.
#pragma once

#include <string>

#include "dtrain/base/file_system.h"

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

}  // namespace dtrain::checkpoint::store
