#include "dtrain/config/run_folder.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "dtrain/base/error.h"
#include "dtrain/config/json.h"

namespace dtrain::config {
namespace {

namespace fs = std::filesystem;
using base::ErrorKind;
using base::fail;

// What a run leaves, in the order in which it may be removed: config.json, which marks the folder
// as a run's, goes last.
constexpr const char* kRunFiles[] = {"metrics.jsonl", "final/model.safetensors", "config.json"};

// The nearest parent that exists, where missing folders would be made.
fs::path existing_parent(const fs::path& folder) {
  std::error_code error;
  fs::path path = fs::absolute(folder).lexically_normal();
  while (!fs::exists(path, error) && path.has_relative_path()) path = path.parent_path();
  return path;
}

void remove_run(const fs::path& folder) {
  for (const char* name : kRunFiles) {
    std::error_code error;
    fs::remove(folder / name, error);
    if (error) {
      fail(ErrorKind::usage, "--overwrite: cannot remove {}: {}", (folder / name).string(),
           error.message());
    }
  }
}

// Fails where there is such a file already, however recently it came.
void write_new_file(const fs::path& path, const std::string& text) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (fd < 0 && errno == EEXIST) {
    fail(ErrorKind::usage,
         "--run-dir {} holds another run, which has just begun: name another folder",
         path.parent_path().string());
  }
  const bool written =
      fd >= 0 && ::write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  const int reason = errno;
  const bool closed = fd >= 0 && ::close(fd) == 0;
  if (!written || !closed) {
    fail(ErrorKind::usage, "{}: cannot be written: {}", path.string(), std::strerror(reason));
  }
}

}  // namespace

void check_run_folder(const RunConfig& run) {
  const std::string& folder = run.dir;
  if (folder.empty()) fail(ErrorKind::usage, "--run-dir is missing: name a folder for the results");
  const fs::path parent = existing_parent(folder);
  std::error_code error;
  if (!fs::is_directory(parent, error)) {
    fail(ErrorKind::usage, "--run-dir {}: {} is not a folder", folder, parent.string());
  }
  if (::access(parent.c_str(), W_OK | X_OK) != 0) {
    fail(ErrorKind::usage, "--run-dir {}: cannot write to {}: {}", folder, parent.string(),
         std::strerror(errno));
  }
  if (run.overwrite) return;
  for (const char* name : kRunFiles) {
    if (fs::exists(fs::path(folder) / name, error)) {
      fail(ErrorKind::usage,
           "--run-dir {} holds another run ({}): name another folder, or give --overwrite to "
           "replace it",
           folder, name);
    }
  }
}

void claim_run_folder(const Config& config) {
  check_run_folder(config.run);
  const fs::path folder(config.run.dir);
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) {
    fail(ErrorKind::usage, "--run-dir {}: cannot create it: {}", config.run.dir, error.message());
  }
  if (config.run.overwrite) remove_run(folder);
  Config saved = config;
  saved.run.overwrite = false;  // the file may start other runs, which must ask anew
  write_new_file(folder / kRunFiles[2], to_json(Command::train, saved) + "\n");
}

}  // namespace dtrain::config
