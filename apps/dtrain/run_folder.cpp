#include "run_folder.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "dtrain/base/error.h"

namespace dtrain::app {
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

}  // namespace

void check_run_folder(const std::string& folder, bool overwrite) {
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
  if (overwrite) return;
  for (const char* name : kRunFiles) {
    if (fs::exists(fs::path(folder) / name, error)) {
      fail(ErrorKind::usage,
           "--run-dir {} holds another run ({}): name another folder, or give --overwrite to "
           "replace it",
           folder, name);
    }
  }
}

void prepare_run_folder(const std::string& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) fail(ErrorKind::usage, "--run-dir {}: cannot create it: {}", folder, error.message());
  for (const char* name : kRunFiles) {
    const fs::path file = fs::path(folder) / name;
    fs::remove(file, error);
    if (error) {
      fail(ErrorKind::usage, "--overwrite: cannot remove {}: {}", file.string(), error.message());
    }
  }
}

}  // namespace dtrain::app
