// Commits checkpoints and removes or quarantines old ones. Only the rank that holds the run's lock
// calls these functions.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "dtrain/base/io/file_system.h"
#include "dtrain/checkpoint/format/manifest.h"

namespace dtrain::checkpoint::store {

/// Checks that every file in the manifest exists, writes and syncs the manifest and its folder,
/// then renames the temporary folder to its final name and syncs the parent folder. The rename is
/// atomic: after a crash of the process or the machine there is either no checkpoint or a complete
/// one. Every file must have been synced. An existing checkpoint of the same step is quarantined as
/// by quarantine_after; it gets its name back if the rename fails.
///
/// Returns: the error of the parent folder's sync, after which the committed checkpoint may not
///          survive a crash of the machine; empty on success.
/// Throws:  any exception of `files`; Error{checkpoint} as check_contents, or naming a listed file
///          that is missing or has another size. Nothing is committed then.
[[nodiscard]] std::string commit(base::FileSystem& files, const std::string& checkpoints,
                                 const format::Manifest& manifest);

/// As commit, but renames `temporary` to `path`, which may be any path in the same folder, and
/// quarantines nothing.
///
/// Throws: as commit; also if the last sync fails.
void commit_as(base::FileSystem& files, const std::string& temporary, const std::string& path,
               const format::Manifest& manifest);

/// The policy that prune() applies.
struct Retention {
  std::int64_t keep_last = 3;   ///< number of newest checkpoints to keep
  std::int64_t keep_every = 0;  ///< always keep multiples of this step; 0: none
  std::int64_t best_step = -1;  ///< keep the checkpoint of this step; negative: none
  /// Later checkpoints do not belong to this run; they are neither counted nor removed.
  std::int64_t newest_step = std::numeric_limits<std::int64_t>::max();
};

/// The result of prune().
struct PruneResult {
  /// Steps of the checkpoints to remove, which have been renamed; removed if `failures` is empty.
  std::vector<std::int64_t> steps;
  std::vector<std::string> left_alone;  ///< reason_to_keep of folders that should have been removed
  std::vector<std::string> failures;    ///< errors of reads and removals
};

/// Removes committed checkpoints that the retention policy does not keep. A folder with files that
/// dtrain did not write is neither counted nor removed (store/removal.h); an unreadable folder is
/// skipped.
///
/// run:    ID of this start, for the folders' temporary names during removal.
/// Throws: as list_steps.
[[nodiscard]] PruneResult prune(base::FileSystem& files, const std::string& checkpoints,
                                const Retention& retention, const std::string& run);

/// Removes temporary folders of killed runs. Returns errors; a remaining folder is never mistaken
/// for a checkpoint.
std::vector<std::string> remove_leftovers(base::FileSystem& files, const std::string& checkpoints);

/// Removes all checkpoints in a folder, including quarantined ones, but no other files. Returns the
/// reason_to_keep of each folder that it kept.
///
/// Throws: any exception of `files`; Error{checkpoint} naming all checkpoints that cannot be read
///         or removed.
[[nodiscard]] std::vector<std::string> remove_all(base::FileSystem& files,
                                                  const std::string& checkpoints,
                                                  const std::string& run);

/// The result of quarantine_after().
struct QuarantinedCheckpoints {
  std::vector<std::string> paths;       ///< after the rename
  std::vector<std::string> left_alone;  ///< reason_to_keep of folders that were not renamed
};

/// Quarantines checkpoints after `step`, because a run that resumes from `step` writes them again:
/// renames step-N to step-N.superseded-RUN, which is never loaded. Does not rename folders that
/// dtrain did not write, nor those of the steps `unreadable`, which may be intact.
///
/// Throws: any exception of `files`.
[[nodiscard]] QuarantinedCheckpoints quarantine_after(
    base::FileSystem& files, const std::string& checkpoints, std::int64_t step,
    const std::string& run, const std::vector<std::int64_t>& unreadable = {});

/// Returns whether a checkpoint of `step` was quarantined.
[[nodiscard]] bool is_quarantined(const std::string& checkpoints, std::int64_t step);

}  // namespace dtrain::checkpoint::store
