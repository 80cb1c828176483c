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
constexpr std::string_view kSetAside = ".superseded-";

std::string path_of(const std::string& checkpoints, std::int64_t step) {
  return checkpoints + "/" + checkpoint_name(step);
}

// The names in a folder that are a checkpoint's, followed by `mark` and a start's ID: a copy made
// by hand has another name. Leaves out what cannot be read; the later removal or listing reports
// it.
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

// Rank 0 writes the manifest for all: it must not list what others wrote elsewhere.
void check_files(const std::string& folder, const format::Contents& contents) {
  for (const format::FileInfo& info : contents.files) {
    const std::string path = folder + "/" + info.name;
    struct stat found {};
    if (base::retry_transient(path, [&] { return ::lstat(path.c_str(), &found); }) != 0) {
      base::fail(base::ErrorKind::checkpoint,
                 "'{}' was written, but cannot be seen by the rank that commits ({}); all ranks "
                 "must share the run folder",
                 path, std::strerror(errno));
    }
    if (!S_ISREG(found.st_mode) || found.st_size != info.bytes) {
      base::fail(base::ErrorKind::checkpoint,
                 "'{}' has {} bytes where its rank wrote {}: another file took its place", path,
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
  (void)read_manifest(folder);  // by its own checksum; what cannot be read back is not committed
  files.sync_folder(folder);
}

// Once it has its name the checkpoint stands: a sync that fails then is no reason to save again.
std::string give_name(base::FileSystem& files, const std::string& temporary,
                      const std::string& path) {
  files.rename(temporary, path);
  try {
    files.sync_folder(base::parent_folder(path));
  } catch (const base::Error& error) {
    return error.what();
  }
  return {};
}

// Makes room for a new save of a step whose checkpoint exists: keeps the old one under a superseded
// name and returns that name. What is not ours stays where it is, and rename() refuses.
std::string make_way(base::FileSystem& files, const std::string& path, const std::string& run) {
  if (!fs::exists(base::link_status(path))) return {};
  if (!why_kept(path, FolderKind::checkpoint).empty()) return {};
  std::string aside = fmt::format("{}{}{}", path, kSetAside, run);
  files.rename(path, aside);
  return aside;
}

// The old checkpoint gets its name back where the new one could not take it.
void put_back(base::FileSystem& files, const std::string& aside, const std::string& path,
              const base::Error& why) {
  try {
    files.rename(aside, path);
  } catch (const base::Error& error) {
    base::fail(base::ErrorKind::checkpoint, "{}; the older checkpoint of this step is '{}' now: {}",
               why.what(), aside, error.what());
  }
}

// Notes a failure with one checkpoint and lets the others go on. Returns false if it failed.
template <typename Task>
bool attempt(std::vector<std::string>& failures, const Task& task) {
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
  const std::string aside = make_way(files, path, manifest.run);
  try {
    return give_name(files, temporary, path);
  } catch (const base::Error& error) {
    if (!aside.empty()) put_back(files, aside, path, error);
    throw;
  }
}

void commit_as(base::FileSystem& files, const std::string& temporary, const std::string& path,
               const format::Manifest& manifest) {
  write_manifest(files, temporary, manifest);
  const std::string unsure = give_name(files, temporary, path);
  if (!unsure.empty()) base::fail(base::ErrorKind::checkpoint, "{}", unsure);
}

Removed prune(base::FileSystem& files, const std::string& checkpoints, const Retention& retention,
              const std::string& run) {
  Removed removed;
  std::vector<std::string> doomed;
  std::int64_t num_kept = 0;
  for (const std::int64_t step : list_steps(checkpoints)) {
    if (step > retention.newest_step) continue;
    const bool is_multiple = retention.keep_every > 0 && step % retention.keep_every == 0;
    const bool stays = is_multiple || step == retention.best_step;
    if (num_kept >= retention.keep_last && stays) continue;
    const std::string path = path_of(checkpoints, step);
    attempt(removed.failures, [&] {
      const std::string why = why_kept(path, FolderKind::checkpoint);
      if (!why.empty()) return removed.left_alone.push_back(why);
      if (num_kept++ < retention.keep_last || stays) return;
      // Without its name first: a removal that is cut short must not leave half a checkpoint.
      const std::string nameless = temporary_folder(checkpoints, step, run);
      files.rename(path, nameless);
      doomed.push_back(nameless);
      removed.steps.push_back(step);
    });
  }
  if (doomed.empty()) return removed;
  // Nor must a machine that stops bring the name back, but not the files.
  if (!attempt(removed.failures, [&] { files.sync_folder(checkpoints); })) return removed;
  for (const std::string& folder : doomed) {
    attempt(removed.failures, [&] { remove_folder_and_files(files, folder); });
  }
  return removed;
}

std::vector<std::string> remove_leftovers(base::FileSystem& files, const std::string& checkpoints) {
  std::vector<std::string> failures;
  for (const std::string& name : marked_names(checkpoints, kTemporary)) {
    attempt(failures, [&] { remove_folder_and_files(files, checkpoints + "/" + name); });
  }
  return failures;
}

std::vector<std::string> remove_all(base::FileSystem& files, const std::string& checkpoints,
                                    const std::string& run) {
  Removed removed = prune(files, checkpoints, {.keep_last = 0}, run);
  if (!removed.failures.empty()) {
    base::fail(base::ErrorKind::checkpoint, "{}", fmt::join(removed.failures, "; "));
  }
  std::vector<std::string> left_alone = std::move(removed.left_alone);
  for (const std::string& name : marked_names(checkpoints, kSetAside)) {
    const std::string folder = checkpoints + "/" + name;
    const std::string why = why_kept(folder, FolderKind::checkpoint);
    if (why.empty()) {
      remove_folder_and_files(files, folder);
    } else {
      left_alone.push_back(why);
    }
  }
  return left_alone;
}

SetAside set_aside_after(base::FileSystem& files, const std::string& checkpoints, std::int64_t step,
                         const std::string& run, const std::vector<std::int64_t>& unreadable) {
  SetAside done;
  for (const std::int64_t later : list_steps(checkpoints)) {
    if (later <= step) break;
    if (std::ranges::find(unreadable, later) != unreadable.end()) continue;
    const std::string path = path_of(checkpoints, later);
    // A damaged one may lack its manifest.
    const std::string why = why_kept(path, FolderKind::unfinished);
    if (!why.empty()) {
      done.left_alone.push_back(why);
      continue;
    }
    done.paths.push_back(fmt::format("{}{}{}", path, kSetAside, run));
    files.rename(path, done.paths.back());
  }
  if (!done.paths.empty()) files.sync_folder(checkpoints);
  return done;
}

bool is_set_aside(const std::string& checkpoints, std::int64_t step) {
  return std::ranges::any_of(marked_names(checkpoints, kSetAside), [&](std::string_view name) {
    return step_of(name.substr(0, name.find(kSetAside))) == step;
  });
}

}  // namespace dtrain::checkpoint::store
