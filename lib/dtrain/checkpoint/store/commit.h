// From a folder that all ranks have written to a checkpoint, and from old ones to none. One rank
// does this for all, holding the run's lock.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "dtrain/base/file_system.h"
#include "dtrain/checkpoint/format/manifest.h"

namespace dtrain::checkpoint::store {

/// Writes the manifest, syncs it, its folder and, after giving the folder its name, the folder
/// above. Before the name is given there is no checkpoint, afterwards it is whole: what a crash of
/// the process or the machine leaves is one or the other. Every file must have been synced.
///
/// Throws: what `files` throws; Error{checkpoint} as check_contents. Nothing is committed then,
///         unless it was the last sync that failed: the checkpoint is there, but may not survive a
///         crash of the machine.
void commit(base::FileSystem& files, const std::string& checkpoints,
            const format::Manifest& manifest);

/// The same for a checkpoint of any name: `temporary` becomes `path`, beside it.
void commit_as(base::FileSystem& files, const std::string& temporary, const std::string& path,
               const format::Manifest& manifest);

struct Retention {
  std::int64_t keep_last = 3;   ///< newest checkpoints that stay
  std::int64_t keep_every = 0;  ///< steps whose multiples stay for ever; 0: none
  /// Later checkpoints are not of this run: they neither count nor go.
  std::int64_t newest_step = std::numeric_limits<std::int64_t>::max();
};

/// Removes the committed checkpoints that are neither among the newest nor at a kept multiple.
/// Returns their steps. run: whose name the folders bear while they are being removed.
///
/// Throws: what `files` throws.
std::vector<std::int64_t> prune(base::FileSystem& files, const std::string& checkpoints,
                                const Retention& retention, const std::string& run);

/// Removes a folder of files that is no checkpoint; one that does not exist is no error.
///
/// Throws: what `files` throws.
void remove_folder_and_files(base::FileSystem& files, const std::string& folder);

/// Removes what runs that were killed have left in the checkpoints' folder. Returns what was wrong
/// with those that cannot be removed; nobody takes them for checkpoints.
std::vector<std::string> remove_leftovers(base::FileSystem& files, const std::string& checkpoints);

/// Removes all checkpoints of a folder, those set aside included; other files stay.
///
/// Throws: what `files` throws.
void remove_all(base::FileSystem& files, const std::string& checkpoints, const std::string& run);

/// Takes the checkpoints after `step` out of the way, which a run that goes on from `step` will
/// write anew: step-N becomes step-N.superseded-RUN and stays for people to look at. Returns the
/// new paths.
///
/// Throws: what `files` throws.
std::vector<std::string> set_aside_after(base::FileSystem& files, const std::string& checkpoints,
                                         std::int64_t step, const std::string& run);

}  // namespace dtrain::checkpoint::store
