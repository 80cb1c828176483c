#include "dtrain/config/run_folder.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "dtrain/base/error.h"

namespace dtrain::config {
namespace {

namespace fs = std::filesystem;
using base::ErrorKind;
using base::fail;

// What tells that a folder holds a run.
constexpr const char* kRunFiles[] = {"metrics.jsonl", "final/model.safetensors", "checkpoints",
                                     "config.json"};

// Where runs without a folder of their own go.
constexpr const char* kRuns = "runs";
constexpr int kMostRuns = 10'000;

// The nearest parent that exists, where missing folders would be made.
fs::path existing_parent(const fs::path& folder) {
  std::error_code error;
  fs::path path = fs::absolute(folder).lexically_normal();
  while (!fs::exists(path, error) && path.has_relative_path()) path = path.parent_path();
  return path;
}

// Whether the run goes on from something that the folder holds.
bool resumes_within(const Config& config) {
  const std::string& from = config.checkpoint.resume;
  if (from == "auto" || from == "none") return from == "auto";
  std::error_code error;
  const fs::path folder = fs::weakly_canonical(config.run.dir, error);
  const fs::path inside = fs::weakly_canonical(from, error).lexically_relative(folder);
  return !inside.empty() && *inside.begin() != "..";
}

}  // namespace

void check_run_folder(const Config& config) {
  const bool goes_on = config.checkpoint.resume == "auto";
  if (config.run.dir.empty() && (goes_on || config.run.overwrite)) {
    fail(ErrorKind::usage, "{} needs --run-dir: name the run to {}",
         goes_on ? "--resume auto" : "--overwrite", goes_on ? "go on with" : "replace");
  }
  const std::string folder = config.run.dir.empty() ? kRuns : config.run.dir;
  const fs::path parent = existing_parent(folder);
  std::error_code error;
  if (!fs::is_directory(parent, error)) {
    fail(ErrorKind::usage, "--run-dir {}: {} is not a folder", folder, parent.string());
  }
  if (::access(parent.c_str(), W_OK | X_OK) != 0) {
    fail(ErrorKind::usage, "--run-dir {}: cannot write to {}: {}", folder, parent.string(),
         std::strerror(errno));
  }
  if (config.run.dir.empty() || config.run.overwrite || resumes_within(config)) return;
  for (const char* name : kRunFiles) {
    if (fs::exists(fs::path(folder) / name, error)) {
      fail(ErrorKind::usage,
           "--run-dir {} holds another run ({}): name another folder, give --resume auto to go on "
           "with it, or --overwrite to replace it",
           folder, name);
    }
  }
}

std::string named_run_folder(const Config& config) {
  if (!config.run.dir.empty()) return config.run.dir;
  const std::string name = fs::path(config.data.train).stem().string();
  std::error_code error;
  fs::create_directories(kRuns, error);
  for (int number = 1; !error && number <= kMostRuns; ++number) {
    const std::string folder = fmt::format("{}/{}-{}", kRuns, name, number);
    if (fs::create_directory(folder, error)) return folder;
    if (error == std::errc::file_exists) error.clear();  // something that is no folder
  }
  fail(ErrorKind::usage, "a run folder cannot be made in {}: {}; give --run-dir",
       fs::absolute(kRuns).string(), error ? error.message() : "there are too many");
}

}  // namespace dtrain::config
