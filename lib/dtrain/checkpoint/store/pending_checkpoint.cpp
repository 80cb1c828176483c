#include "dtrain/checkpoint/store/pending_checkpoint.h"

#include <fmt/ranges.h>

#include <exception>
#include <vector>

#include "dtrain/base/error.h"
#include "dtrain/checkpoint/store/names.h"
#include "dtrain/checkpoint/store/removal.h"

namespace dtrain::checkpoint::store {
namespace {

// Runs a task. Returns the failure's message; empty on success.
template <typename Task>
std::string failure_of(const Task& task) {
  try {
    task();
    return {};
  } catch (const std::exception& error) {
    const std::string text = error.what();
    return text.empty() ? "an error without a message" : text;
  } catch (const SaveCancelled&) {
    return "cancelled";
  }
}

}  // namespace

std::string PendingCheckpoint::folder() const {
  return temporary_folder(options_.checkpoints, options_.manifest.step, options_.manifest.run);
}

WriteResult PendingCheckpoint::write(std::span<const PieceBytes> pieces) const {
  WriteResult own;
  own.error = failure_of([&] {
    files_.make_folder(options_.checkpoints);
    files_.make_folder(folder());
    const Shard shard{.folder = folder(), .rank = options_.rank, .num_ranks = options_.num_ranks};
    own.contents =
        write_shard(files_, shard, pieces,
                    RateLimiter(options_.bytes_per_second, stop_.get_token(), &is_unlimited_));
  });
  return own;
}

CommitResult PendingCheckpoint::commit() const {
  CommitResult done;
  std::string sync_failure;
  done.error = failure_of(
      [&] { sync_failure = store::commit(files_, options_.checkpoints, options_.manifest); });
  if (!done.error.empty()) {
    discard();
    return done;
  }
  if (sync_failure.empty()) {  // the folder may be new
    sync_failure =
        failure_of([&] { files_.sync_folder(base::parent_folder(options_.checkpoints)); });
  }
  done.warning = sync_failure.empty()
                     ? prune()
                     : "may not survive a crash of the machine, so older checkpoints are kept: " +
                           sync_failure;
  return done;
}

// Returns which old checkpoints were not removed, and why.
std::string PendingCheckpoint::prune() const {
  std::string stays;
  const std::string failure = failure_of([&] {
    const PruneResult removed =
        store::prune(files_, options_.checkpoints, options_.retention, options_.manifest.run);
    std::vector<std::string> parts;
    if (!removed.failures.empty()) {
      parts.push_back(
          fmt::format("old checkpoints were not removed: {}", fmt::join(removed.failures, "; ")));
    }
    if (!removed.left_alone.empty()) {
      parts.push_back(fmt::format("left alone: {}", fmt::join(removed.left_alone, "; ")));
    }
    stays = fmt::format("{}", fmt::join(parts, "; "));
  });
  return failure.empty() ? stays : "old checkpoints were not removed: " + failure;
}

void PendingCheckpoint::discard() const {
  try {
    remove_folder_and_files(files_, folder());
  } catch (const base::Error&) {
  }
}

}  // namespace dtrain::checkpoint::store
