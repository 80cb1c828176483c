#include "dtrain/checkpoint/store/commit.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "dtrain/checkpoint/store/names.h"
#include "dtrain/checkpoint/store/removal.h"

namespace dtrain::checkpoint::store {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kTemporary = ".tmp-";
constexpr std::string_view kSetAside = ".superseded-";

std::string path_of(const std::string& checkpoints, std::int64_t step) {
  return checkpoints + "/" + checkpoint_name(step);
}

// Whether a name is a checkpoint's with `mark` and more behind it.
bool is_marked(std::string_view name, std::string_view mark) {
  const auto at = name.find(mark);
  return at != std::string_view::npos && step_of(name.substr(0, at));
}

// What cannot be read is left to those who go on to remove or list it.
std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error); !error && entry != fs::directory_iterator();
       entry.increment(error)) {
    names.push_back(entry->path().filename().string());
  }
  return names;
}

// Rank 0 writes the manifest for all: it must not list what others wrote elsewhere.
void check_files(const std::string& folder, const format::Contents& contents) {
  for (const format::FileInfo& info : contents.files) {
    const std::string path = folder + "/" + info.name;
    struct stat found {};
    if (::lstat(path.c_str(), &found) != 0) {
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
  const auto file = files.create_file(fmt::format("{}/{}", folder, kManifestName));
  const std::string text = format::to_text(manifest);
  file->write(std::as_bytes(std::span(text)));
  file->sync();
  file->close();
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

// A save of a step whose checkpoint exists: the old one is kept under the name of one that was
// given up. What is not ours stays where it is, and rename() refuses.
void make_way(base::FileSystem& files, const std::string& path, const std::string& run) {
  std::error_code error;
  if (!fs::exists(fs::symlink_status(path, error))) return;
  if (why_kept(path, FolderKind::checkpoint).empty()) {
    files.rename(path, fmt::format("{}{}{}", path, kSetAside, run));
  }
}

}  // namespace

std::string commit(base::FileSystem& files, const std::string& checkpoints,
                   const format::Manifest& manifest) {
  const std::string temporary = temporary_folder(checkpoints, manifest.step, manifest.run);
  const std::string path = path_of(checkpoints, manifest.step);
  write_manifest(files, temporary, manifest);
  make_way(files, path, manifest.run);
  return give_name(files, temporary, path);
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
    if (num_kept >= retention.keep_last && is_multiple) continue;
    const std::string path = path_of(checkpoints, step);
    const std::string why = why_kept(path, FolderKind::checkpoint);
    if (!why.empty()) {
      removed.left_alone.push_back(why);
      continue;
    }
    if (num_kept++ < retention.keep_last || is_multiple) continue;
    // Without its name first: a removal that is cut short must not leave half a checkpoint.
    doomed.push_back(temporary_folder(checkpoints, step, run));
    files.rename(path, doomed.back());
    removed.steps.push_back(step);
  }
  // Nor must a machine that stops bring the name back, but not the files.
  if (!doomed.empty()) files.sync_folder(checkpoints);
  for (const std::string& folder : doomed) remove_folder_and_files(files, folder);
  return removed;
}

std::vector<std::string> remove_leftovers(base::FileSystem& files, const std::string& checkpoints) {
  std::vector<std::string> failures;
  for (const std::string& name : names_in(checkpoints)) {
    if (!is_marked(name, kTemporary)) continue;
    try {
      remove_folder_and_files(files, checkpoints + "/" + name);
    } catch (const base::Error& error) {
      failures.emplace_back(error.what());
    }
  }
  return failures;
}

std::vector<std::string> remove_all(base::FileSystem& files, const std::string& checkpoints,
                                    const std::string& run) {
  std::vector<std::string> left_alone = prune(files, checkpoints, {.keep_last = 0}, run).left_alone;
  for (const std::string& name : names_in(checkpoints)) {
    if (!is_marked(name, kSetAside)) continue;
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

std::vector<std::string> set_aside_after(base::FileSystem& files, const std::string& checkpoints,
                                         std::int64_t step, const std::string& run) {
  std::vector<std::string> paths;
  for (const std::int64_t later : list_steps(checkpoints)) {
    if (later <= step) break;
    const std::string path = path_of(checkpoints, later);
    paths.push_back(fmt::format("{}{}{}", path, kSetAside, run));
    files.rename(path, paths.back());
  }
  if (!paths.empty()) files.sync_folder(checkpoints);
  return paths;
}

}  // namespace dtrain::checkpoint::store
