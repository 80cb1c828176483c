#include "dtrain/checkpoint/store/commit.h"

#include <fmt/format.h>

#include <filesystem>
#include <system_error>

#include "dtrain/checkpoint/store/names.h"

namespace dtrain::checkpoint::store {
namespace {

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
  namespace fs = std::filesystem;
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error); !error && entry != fs::directory_iterator();
       entry.increment(error)) {
    names.push_back(entry->path().filename().string());
  }
  return names;
}

}  // namespace

void commit(base::FileSystem& files, const std::string& checkpoints,
            const format::Manifest& manifest) {
  commit_as(files, temporary_folder(checkpoints, manifest.step, manifest.run),
            path_of(checkpoints, manifest.step), manifest);
}

void commit_as(base::FileSystem& files, const std::string& temporary, const std::string& path,
               const format::Manifest& manifest) {
  format::check_contents(manifest.contents, temporary);
  const auto file = files.create_file(fmt::format("{}/{}", temporary, kManifestName));
  const std::string text = format::to_text(manifest);
  file->write(std::as_bytes(std::span(text)));
  file->sync();
  file->close();
  files.sync_folder(temporary);
  files.rename(temporary, path);
  files.sync_folder(base::parent_folder(path));
}

std::vector<std::int64_t> prune(base::FileSystem& files, const std::string& checkpoints,
                                const Retention& retention, const std::string& run) {
  std::vector<std::int64_t> removed;
  std::vector<std::string> doomed;
  std::int64_t seen = 0;
  for (const std::int64_t step : list_steps(checkpoints)) {
    if (step > retention.newest_step) continue;
    const bool is_kept = retention.keep_every > 0 && step % retention.keep_every == 0;
    if (seen++ < retention.keep_last || is_kept) continue;
    // Without its name first: a removal that is cut short must not leave half a checkpoint.
    doomed.push_back(temporary_folder(checkpoints, step, run));
    files.rename(path_of(checkpoints, step), doomed.back());
    removed.push_back(step);
  }
  // Nor must a machine that stops bring the name back, but not the files.
  if (!doomed.empty()) files.sync_folder(checkpoints);
  for (const std::string& folder : doomed) remove_folder_and_files(files, folder);
  return removed;
}

void remove_folder_and_files(base::FileSystem& files, const std::string& folder) {
  for (const std::string& name : names_in(folder)) files.remove_file(folder + "/" + name);
  files.remove_folder(folder);
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

void remove_all(base::FileSystem& files, const std::string& checkpoints, const std::string& run) {
  prune(files, checkpoints, {.keep_last = 0}, run);
  remove_leftovers(files, checkpoints);
  for (const std::string& name : names_in(checkpoints)) {
    if (is_marked(name, kSetAside)) remove_folder_and_files(files, checkpoints + "/" + name);
  }
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
