#include "dtrain/checkpoint/store/locate.h"

#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "dtrain/base/error.h"
#include "dtrain/base/path_kind.h"
#include "dtrain/checkpoint/store/names.h"

namespace dtrain::checkpoint::store {
namespace {

namespace fs = std::filesystem;
using base::ErrorKind;
using base::fail;
using base::is_there;

// "run/" and "run" are one folder; "." has a name only as a full path.
std::string bare_name(const std::string& path) {
  std::error_code error;
  const fs::path full = fs::absolute(path, error).lexically_normal();
  return (full.has_filename() ? full : full.parent_path()).filename().string();
}

// Goes by the name even where the manifest is gone: that is damage, which must be named as such.
bool is_checkpoint(const std::string& path) {
  return is_there(fs::path(path) / kManifestName) || step_of(bare_name(path));
}

void require_folder(const std::string& path) {
  if (base::is_folder(path)) {
    if (::access(path.c_str(), X_OK) == 0) return;
    fail(ErrorKind::checkpoint, "'{}' cannot be read: {}", path, std::strerror(errno));
  }
  fail(ErrorKind::checkpoint, "'{}' {}; name a run folder or a checkpoint in it", path,
       is_there(path) ? "is not a folder" : "does not exist");
}

}  // namespace

std::string run_at(const std::string& path) {
  std::error_code error;
  const fs::path whole = fs::absolute(path, error).lexically_normal();
  const fs::path folder = whole.has_filename() ? whole : whole.parent_path();
  const bool is_named = checkpoints_folder(folder.parent_path().string()) == folder;
  if (!is_named || !base::is_folder(folder) || list_steps(path).empty()) return path;
  const fs::path run = (fs::path(path) / "..").lexically_normal();
  return (run.has_filename() ? run : run.parent_path()).string();
}

bool has_checkpoints_folder(const std::string& run_dir) {
  const fs::path folder = checkpoints_folder(run_dir);
  return base::is_folder(folder) && !is_there(folder / "config.json");
}

std::vector<std::string> checkpoints_of_run(const std::string& path) {
  require_folder(path);
  const std::string run_dir = run_at(path);
  const std::string folder = checkpoints_folder(run_dir);
  if (!has_checkpoints_folder(run_dir) && !is_there(fs::path(run_dir) / "config.json")) {
    fail(ErrorKind::checkpoint,
         "'{}' is not a run folder: it holds neither checkpoints nor config.json; name the "
         "--run-dir of a run",
         run_dir);
  }
  std::vector<std::string> paths;
  for (const std::int64_t step : list_steps(folder)) {
    paths.push_back(folder + "/" + checkpoint_name(step));
  }
  return paths;
}

std::vector<std::string> checkpoints_at(const std::string& path) {
  require_folder(path);
  if (is_checkpoint(path)) return {path};
  std::vector<std::string> paths = checkpoints_of_run(path);
  if (paths.empty()) {
    const std::string final = final_model(path);
    fail(ErrorKind::checkpoint, "run folder '{}' holds no checkpoint; {}", path,
         is_there(final) ? fmt::format("its model is in {}", final)
                         : "train with --checkpoint-every to write some");
  }
  return paths;
}

std::string weights_at(const std::string& path) {
  require_folder(path);
  const std::string folder = run_at(path);
  const std::string inside = (fs::path(folder) / "model.safetensors").string();
  if (is_there(inside) && !is_checkpoint(folder)) return inside;
  const std::string final = final_model(folder);
  const bool has_checkpoint =
      is_checkpoint(folder) || !list_steps(checkpoints_folder(folder)).empty();
  return !has_checkpoint && is_there(final) ? final : checkpoints_at(folder).front();
}

std::string final_model(const std::string& run_dir) {
  return (fs::path(run_dir) / "final" / "model.safetensors").string();
}

}  // namespace dtrain::checkpoint::store
