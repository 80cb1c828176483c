#include "dtrain/checkpoint/store/commit.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "dtrain/base/io/path_kind.h"
#include "dtrain/base/io/storage_error.h"
#include "dtrain/checkpoint/store/names.h"
#include "dtrain/checkpoint/store/reader.h"
#include "dtrain/checkpoint/store/removal.h"

namespace dtrain::checkpoint::store {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kTemporary = ".tmp-";
constexpr std::string_view kSuperseded = ".superseded-";

std::string path_of(const std::string& checkpoints, std::int64_t step) {
  return checkpoints + "/" + checkpoint_name(step);
}

// Lists the folder's names that consist of a checkpoint's name, `mark` and a start ID; user-made
// copies do not match. Ignores read errors, which a later removal or listing reports.
std::vector<std::string> marked_names(const std::string& checkpoints, std::string_view mark) {
  std::error_code ignored;
  std::vector<std::string> names = base::names_in(checkpoints, ignored);
  std::erase_if(names, [&](std::string_view name) {
    const auto at = name.find(mark);
    return at == name.npos || !step_of(name.substr(0, at)) ||
           !is_start_id(name.substr(at + mark.size()));
  });
  return names;
}

// Rank 0 must see every file that it lists: another rank may have written to a folder of its own.
void check_files(const std::string& folder, const format::Contents& contents) {
  for (const format::FileInfo& info : contents.files) {
    const std::string path = folder + "/" + info.name;
    struct stat found {};
    if (base::retry_transient(path, [&] { return ::lstat(path.c_str(), &found); }) != 0) {
      base::fail(base::ErrorKind::checkpoint,
                 "'{}' was written, but is not visible on the rank that commits ({}); all ranks "
                 "must share the run folder",
                 path, std::strerror(errno));
    }
    if (!S_ISREG(found.st_mode) || found.st_size != info.bytes) {
      base::fail(base::ErrorKind::checkpoint,
                 "'{}' has {} bytes, but its rank wrote {}: another file replaced it", path,
                 found.st_size, info.bytes);
    }
  }
}

void write_manifest(base::FileSystem& files, const std::string& folder,
                    const format::Manifest& manifest) {
  format::check_contents(manifest.contents, folder);
  check_files(folder, manifest.contents);
  const std::string text = format::to_text(manifest);
  base::write_with_retries(
      files, fmt::format("{}/{}", folder, kManifestName),
      [&](base::OutputFile& file) { file.write(std::as_bytes(std::span(text))); });
  (void)read_manifest(folder);  // verifies its checksum before the commit
  files.sync_folder(folder);
}

// Returns the error of the sync: after the rename the checkpoint is committed, so it must not
// throw.
std::string rename_and_sync(base::FileSystem& files, const std::string& temporary,
                            const std::string& path) {
  files.rename(temporary, path);
  try {
    files.sync_folder(base::parent_folder(path));
  } catch (const base::Error& error) {
    return error.what();
  }
  return {};
}

// Renames an existing checkpoint of the same step to a superseded name, and returns that name. A
// folder that is not ours stays in place, and the later rename fails.
std::string quarantine_existing(base::FileSystem& files, const std::string& path,
                                const std::string& run) {
  if (!fs::exists(base::link_status(path))) return {};
  if (!reason_to_keep(path, FolderKind::checkpoint).empty()) return {};
  std::string aside = fmt::format("{}{}{}", path, kSuperseded, run);
  files.rename(path, aside);
  return aside;
}

// Gives the old checkpoint its name back after the new one's rename failed.
void restore_name(base::FileSystem& files, const std::string& aside, const std::string& path,
                  const base::Error& why) {
  try {
    files.rename(aside, path);
  } catch (const base::Error& error) {
    base::fail(base::ErrorKind::checkpoint,
               "{}; the older checkpoint of this step keeps the name '{}', because renaming it "
               "back failed: {}",
               why.what(), aside, error.what());
  }
}

// Runs a task for one checkpoint and records its error, so that others proceed. Returns success.
template <typename Task>
bool run_noting_failure(std::vector<std::string>& failures, const Task& task) {
  try {
    task();
    return true;
  } catch (const base::Error& error) {
    failures.emplace_back(error.what());
    return false;
  }
}

}  // namespace

std::string commit(base::FileSystem& files, const std::string& checkpoints,
                   const format::Manifest& manifest) {
  const std::string temporary = temporary_folder(checkpoints, manifest.step, manifest.run);
  const std::string path = path_of(checkpoints, manifest.step);
  write_manifest(files, temporary, manifest);
  const std::string aside = quarantine_existing(files, path, manifest.run);
  try {
    return rename_and_sync(files, temporary, path);
  } catch (const base::Error& error) {
    if (!aside.empty()) restore_name(files, aside, path, error);
    throw;
  }
}

void commit_as(base::FileSystem& files, const std::string& temporary, const std::string& path,
               const format::Manifest& manifest) {
  write_manifest(files, temporary, manifest);
  const std::string sync_failure = rename_and_sync(files, temporary, path);
  if (!sync_failure.empty()) base::fail(base::ErrorKind::checkpoint, "{}", sync_failure);
}

PruneResult prune(base::FileSystem& files, const std::string& checkpoints,
                  const Retention& retention, const std::string& run) {
  PruneResult removed;
  std::vector<std::string> to_remove;
  std::int64_t num_kept = 0;
  for (const std::int64_t step : list_steps(checkpoints)) {
    if (step > retention.newest_step) continue;
    const bool is_multiple = retention.keep_every > 0 && step % retention.keep_every == 0;
    const bool stays = is_multiple || step == retention.best_step;
    if (num_kept >= retention.keep_last && stays) continue;
    const std::string path = path_of(checkpoints, step);
    run_noting_failure(removed.failures, [&] {
      const std::string why = reason_to_keep(path, FolderKind::checkpoint);
      if (!why.empty()) return removed.left_alone.push_back(why);
      if (num_kept++ < retention.keep_last || stays) return;
      // Renames first, so an interrupted removal does not leave a partial checkpoint under its
      // name.
      const std::string temporary = temporary_folder(checkpoints, step, run);
      files.rename(path, temporary);
      to_remove.push_back(temporary);
      removed.steps.push_back(step);
    });
  }
  if (to_remove.empty()) return removed;
  // Syncs the renames, so a crash of the machine cannot restore a name whose files are gone.
  if (!run_noting_failure(removed.failures, [&] { files.sync_folder(checkpoints); }))
    return removed;
  for (const std::string& folder : to_remove) {
    run_noting_failure(removed.failures, [&] { remove_folder_and_files(files, folder); });
  }
  return removed;
}

std::vector<std::string> remove_leftovers(base::FileSystem& files, const std::string& checkpoints) {
  std::vector<std::string> failures;
  for (const std::string& name : marked_names(checkpoints, kTemporary)) {
    run_noting_failure(failures, [&] { remove_folder_and_files(files, checkpoints + "/" + name); });
  }
  return failures;
}

std::vector<std::string> remove_all(base::FileSystem& files, const std::string& checkpoints,
                                    const std::string& run) {
  PruneResult removed = prune(files, checkpoints, {.keep_last = 0}, run);
  if (!removed.failures.empty()) {
    base::fail(base::ErrorKind::checkpoint, "{}", fmt::join(removed.failures, "; "));
  }
  std::vector<std::string> left_alone = std::move(removed.left_alone);
  for (const std::string& name : marked_names(checkpoints, kSuperseded)) {
    const std::string folder = checkpoints + "/" + name;
    const std::string why = reason_to_keep(folder, FolderKind::checkpoint);
    if (why.empty()) {
      remove_folder_and_files(files, folder);
    } else {
      left_alone.push_back(why);
    }
  }
  return left_alone;
}

QuarantinedCheckpoints quarantine_after(base::FileSystem& files, const std::string& checkpoints,
                                        std::int64_t step, const std::string& run,
                                        const std::vector<std::int64_t>& unreadable) {
  QuarantinedCheckpoints done;
  for (const std::int64_t later : list_steps(checkpoints)) {
    if (later <= step) break;
    if (std::ranges::find(unreadable, later) != unreadable.end()) continue;
    const std::string path = path_of(checkpoints, later);
    // A damaged checkpoint may lack its manifest.
    const std::string why = reason_to_keep(path, FolderKind::unfinished);
    if (!why.empty()) {
      done.left_alone.push_back(why);
      continue;
    }
    done.paths.push_back(fmt::format("{}{}{}", path, kSuperseded, run));
    files.rename(path, done.paths.back());
  }
  if (!done.paths.empty()) files.sync_folder(checkpoints);
  return done;
}

bool is_quarantined(const std::string& checkpoints, std::int64_t step) {
  return std::ranges::any_of(marked_names(checkpoints, kSuperseded), [&](std::string_view name) {
    return step_of(name.substr(0, name.find(kSuperseded))) == step;
  });
}

}  // namespace dtrain::checkpoint::store
