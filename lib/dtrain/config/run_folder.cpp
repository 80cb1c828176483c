#include "dtrain/config/run_folder.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "dtrain/base/error.h"
#include "dtrain/base/io/path_kind.h"
#include "dtrain/base/io/storage_error.h"
#include "dtrain/config/values/data_mixture.h"

namespace dtrain::config {
namespace {

namespace fs = std::filesystem;
using base::ErrorKind;
using base::fail;

// Entries that identify a run folder.
constexpr const char* kRunFiles[] = {"metrics.jsonl", "final/model.safetensors", "checkpoints",
                                     "config.json"};

// The parent of run folders if --run-dir is not given.
constexpr const char* kRuns = "runs";
constexpr int kMaxRuns = 10'000;
// Subfolders in which a run writes and removes files.
constexpr const char* kRunSubfolders[] = {"checkpoints", "final", "init-from", "tensorboard",
                                          "profile"};

// The nearest existing parent, in which missing folders would be created.
fs::path existing_parent(const fs::path& folder) {
  std::error_code error;
  fs::path path = fs::absolute(folder, error).lexically_normal();
  if (error) {
    fail(ErrorKind::usage,
         "--run-dir {}: the current folder cannot be found ({}); change to another",
         folder.string(), error.message());
  }
  while (!base::path_exists(path) && path.has_relative_path()) path = path.parent_path();
  return path;
}

// Rejects a subfolder that is a link: it may point into another run, which has its own lock.
void check_subfolder(const std::string& run_dir, const char* name) {
  const fs::path path = fs::path(run_dir) / name;
  std::error_code error;
  const auto status = base::link_status(path);
  if (!fs::exists(status) || fs::is_directory(status)) return;
  if (!fs::is_symlink(status)) {
    fail(ErrorKind::usage, "--run-dir {}: '{}' is not a folder; remove it or name another folder",
         run_dir, path.string());
  }
  fail(ErrorKind::usage,
       "--run-dir {}: '{}' is a link to '{}', but a run removes files only in its own folder; move "
       "the whole run folder there, and link that",
       run_dir, path.string(), fs::read_symlink(path, error).string());
}

// True if the run resumes from a checkpoint in its own folder.
bool resumes_within(const Config& config) {
  const Resume& from = config.checkpoint.resume;
  if (from.kind != Resume::Kind::path) return from.is_automatic();
  const fs::path folder = base::resolved_path(config.run.dir);
  const fs::path inside = base::resolved_path(from.path).lexically_relative(folder);
  return !inside.empty() && *inside.begin() != "..";
}

// The name in runs/NAME-N.
std::string name_of(const Config& config) {
  return fs::path(mixture_or_file(config.data.train).front().path).stem().string();
}

}  // namespace

void require_run_dir(const Config& config) {
  const bool resumes = config.checkpoint.resume.is_automatic();
  if (config.run.dir.empty() && (resumes || config.run.overwrite)) {
    fail(ErrorKind::usage, "{} needs --run-dir: name the run to {}",
         resumes ? "--resume auto" : "--overwrite", resumes ? "resume" : "replace");
  }
}

void check_run_folder(const Config& config) {
  const std::string folder = config.run.dir.empty() ? kRuns : config.run.dir;
  const fs::path parent = existing_parent(folder);
  if (!base::is_folder(parent)) {
    fail(ErrorKind::usage, "--run-dir {}: {} is not a folder", folder, parent.string());
  }
  const auto access = [&] { return ::access(parent.c_str(), W_OK | X_OK); };
  if (base::retry_transient(parent.string(), access) != 0) {
    const int reason = errno;
    base::fail_on_storage(
        ErrorKind::usage, reason,
        fmt::format("{} {}: cannot write to {}: {}",
                    config.run.dir.empty() ? "--run-dir is not given, so the run folder would be in"
                                           : "--run-dir",
                    folder, parent.string(), std::strerror(reason)));
  }
  if (config.run.dir.empty()) return;
  for (const char* name : kRunSubfolders) check_subfolder(folder, name);
  if (config.run.overwrite || resumes_within(config)) return;
  for (const char* name : kRunFiles) {
    // A folder of several runs may contain a run named "checkpoints".
    const fs::path path = fs::path(folder) / name;
    if (base::path_exists(path) && !base::path_exists(path / "config.json")) {
      fail(ErrorKind::usage,
           "--run-dir {} already contains a run ({}): name another folder, give --resume auto to "
           "resume it, or --overwrite to replace it",
           folder, name);
    }
  }
}

std::vector<std::string> default_run_folders(const Config& config) {
  const std::string start = name_of(config) + "-";
  std::vector<std::string> folders;
  std::error_code error;
  const int result = base::retry_transient(kRuns, [&] {
    folders.clear();
    for (fs::directory_iterator entry(kRuns, error); !error && entry != fs::directory_iterator();
         entry.increment(error)) {
      if (entry->path().filename().string().starts_with(start))
        folders.push_back(entry->path().string());
    }
    errno = error.value();
    return error ? -1 : 0;
  });
  if (result != 0 && error != std::errc::no_such_file_or_directory) {
    base::fail_on_storage(
        ErrorKind::usage, error.value(),
        fmt::format("folder '{}' cannot be read ({}); give --run-dir", kRuns, error.message()));
  }
  return folders;
}

std::string overwriting_flag(const Config& config) {
  return config.run.overwrite ? "--overwrite" : "--resume " + config.checkpoint.resume.text();
}

std::string create_run_folder(const Config& config, base::NewFolders& made) {
  if (!config.run.dir.empty()) return config.run.dir;
  const std::string name = name_of(config);
  std::error_code error;
  made.add(kRuns, error);
  for (int number = 1; !error && number <= kMaxRuns; ++number) {
    const std::string folder = fmt::format("{}/{}-{}", kRuns, name, number);
    if (made.add(folder, error)) return folder;
    if (error == std::errc::file_exists) error.clear();  // a dangling link
  }
  base::fail_on_storage(ErrorKind::usage, error.value(),
                        fmt::format("cannot create a run folder in {}: {}; give --run-dir",
                                    fs::absolute(kRuns).string(),
                                    error ? error.message() : "it contains too many runs"));
}

}  // namespace dtrain::config
