// Commits a folder that all ranks have written, and removes old checkpoints. One rank does this for
// all, holding the run's lock.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "dtrain/base/io/file_system.h"
#include "dtrain/checkpoint/format/manifest.h"

namespace dtrain::checkpoint::store {

/// Looks at every file that the manifest lists, writes the manifest, syncs it, its folder and,
/// after giving the folder its name, the folder above. Before the name is given there is no
/// checkpoint, afterwards it is whole: what a crash of the process or the machine leaves is one or
/// the other. Every file must have been synced. A checkpoint of the same step is set aside as
/// set_aside_after does; it gets its name back if the new one cannot take it.
///
/// Returns why the checkpoint, which stands, may not survive a crash of the machine: the sync after
///         its name was given failed. Empty: it survives.
/// Throws: what `files` throws; Error{checkpoint} as check_contents, or naming a listed file that
///         cannot be seen or has another size. Nothing is committed then.
[[nodiscard]] std::string commit(base::FileSystem& files, const std::string& checkpoints,
                                 const format::Manifest& manifest);

/// The same for a checkpoint of any name: `temporary` becomes `path`, beside it. Nothing is set
/// aside.
///
/// Throws: also if the last sync fails.
void commit_as(base::FileSystem& files, const std::string& temporary, const std::string& path,
               const format::Manifest& manifest);

struct Retention {
  std::int64_t keep_last = 3;   ///< newest checkpoints that stay
  std::int64_t keep_every = 0;  ///< steps whose multiples stay for ever; 0: none
  std::int64_t best_step = -1;  ///< of one that stays in any case; negative: none
  /// Later checkpoints are not of this run: they neither count nor go.
  std::int64_t newest_step = std::numeric_limits<std::int64_t>::max();
};

/// The result of prune().
struct Removed {
  std::vector<std::int64_t> steps;      ///< have lost their names, and are gone if nothing failed
  std::vector<std::string> left_alone;  ///< why folders that had their turn stay, as why_kept says
  std::vector<std::string> failures;    ///< what could not be read or removed, and why
};

/// Removes the committed checkpoints that are neither among the newest, nor at a kept multiple, nor
/// the best. A folder that dtrain did not write, or not alone, does not count and is not removed
/// (store/removal.h); one that cannot be read is skipped.
/// run: the start whose ID the folders bear during removal.
///
/// Throws: as list_steps.
[[nodiscard]] Removed prune(base::FileSystem& files, const std::string& checkpoints,
                            const Retention& retention, const std::string& run);

/// Removes leftovers of killed runs from the checkpoints' folder. Returns why some cannot be
/// removed; nobody takes them for checkpoints.
std::vector<std::string> remove_leftovers(base::FileSystem& files, const std::string& checkpoints);

/// Removes all checkpoints of a folder, those set aside included; other files stay. Returns why
/// folders with such names stay.
///
/// Throws: what `files` throws; Error{checkpoint} naming all checkpoints that cannot be read or
///         removed.
[[nodiscard]] std::vector<std::string> remove_all(base::FileSystem& files,
                                                  const std::string& checkpoints,
                                                  const std::string& run);

struct SetAside {
  std::vector<std::string> paths;       ///< new ones
  std::vector<std::string> left_alone;  ///< why folders with such names stay
};

/// Sets aside the checkpoints after `step`, which a run that resumes from `step` will write anew:
/// step-N becomes step-N.superseded-RUN and stays for people to look at. Folders that dtrain did
/// not write stay as they are, and so do those of the steps `unreadable`: they may be whole.
///
/// Throws: what `files` throws.
[[nodiscard]] SetAside set_aside_after(base::FileSystem& files, const std::string& checkpoints,
                                       std::int64_t step, const std::string& run,
                                       const std::vector<std::int64_t>& unreadable = {});

/// Returns whether a checkpoint of `step` was set aside.
[[nodiscard]] bool is_set_aside(const std::string& checkpoints, std::int64_t step);

}  // namespace dtrain::checkpoint::store
