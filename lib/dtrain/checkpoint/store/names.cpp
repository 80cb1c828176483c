#include "dtrain/checkpoint/store/names.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <functional>
#include <regex>
#include <system_error>

#include "dtrain/base/error.h"
#include "dtrain/base/io/file_system.h"
#include "dtrain/base/io/path_kind.h"
#include "dtrain/base/io/storage_error.h"
#include "dtrain/base/text/number.h"
#include "dtrain/config/hugging_face/config_file.h"
#include "dtrain/config/hugging_face/unsupported_models.h"

namespace dtrain::checkpoint::store {
namespace {

namespace fs = std::filesystem;
using base::ErrorKind;
using base::fail;
using base::path_exists;

constexpr std::string_view kPrefix = "step-";

// Normalizes "run/" to "run", and gives "." its name.
fs::path full_path(const std::string& path) {
  std::error_code error;
  const fs::path full = fs::absolute(path, error).lexically_normal();
  return full.has_filename() ? full : full.parent_path();
}

bool is_run(const std::string& folder) {
  return has_checkpoints_folder(folder) || path_exists(fs::path(folder) / "config.json");
}

void require_folder(const std::string& path) {
  if (base::is_folder(path)) {
    if (::access(path.c_str(), X_OK) == 0) return;
    fail(ErrorKind::checkpoint, "'{}' cannot be read: {}", path, std::strerror(errno));
  }
  fail(ErrorKind::checkpoint, "'{}' {}; give a run folder or a checkpoint in it", path,
       path_exists(path) ? "is not a folder" : "does not exist");
}

}  // namespace

std::string checkpoints_folder(const std::string& run_dir) { return run_dir + "/checkpoints"; }

std::string checkpoint_name(std::int64_t step) { return fmt::format("{}{}", kPrefix, step); }

std::optional<std::int64_t> step_of(std::string_view name) {
  if (!name.starts_with(kPrefix)) return std::nullopt;
  const auto step = base::number_in<std::int64_t>(name.substr(kPrefix.size()));
  // Rejects other spellings of the number: signs and leading zeros.
  return step && *step >= 0 && checkpoint_name(*step) == name ? step : std::nullopt;
}

bool is_checkpoint(const std::string& path) {
  if (path_exists(fs::path(path) / kManifestName)) return true;
  return step_of(full_path(path).filename().string()) &&
         !path_exists(fs::path(path) / "config.json") && model_file_in(path).empty();
}

std::string new_start_id() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return fmt::format("{:x}-{}", std::chrono::duration_cast<std::chrono::nanoseconds>(now).count(),
                     ::getpid());
}

bool is_start_id(std::string_view text) {
  // Nanoseconds since 1970 have 16 hexadecimal digits until the year 2554; with a reset clock
  // fewer, but 12 after three days.
  static const std::regex kStartId("[0-9a-f]{12,}-[0-9]+");
  return std::regex_match(text.begin(), text.end(), kStartId);
}

std::string temporary_folder(const std::string& checkpoints, std::int64_t step,
                             std::string_view run) {
  return fmt::format("{}/{}.tmp-{}", checkpoints, checkpoint_name(step), run);
}

std::vector<std::int64_t> list_steps(const std::string& checkpoints) {
  std::error_code error;
  std::vector<std::int64_t> steps;
  for (const std::string& name : base::names_in(checkpoints, error)) {
    if (const auto step = step_of(name)) steps.push_back(*step);
  }
  if (error && error != std::errc::no_such_file_or_directory) {
    base::fail_on_storage(
        ErrorKind::checkpoint, error.value(),
        fmt::format("folder '{}' cannot be read: {}", checkpoints, error.message()));
  }
  std::sort(steps.begin(), steps.end(), std::greater<>());
  return steps;
}

std::string run_at(const std::string& path) {
  const fs::path folder = full_path(path);
  const bool is_named = checkpoints_folder(folder.parent_path().string()) == folder;
  if (!is_named || !base::is_folder(folder) || list_steps(path).empty()) return path;
  const fs::path run = (fs::path(path) / "..").lexically_normal();
  return (run.has_filename() ? run : run.parent_path()).string();
}

std::string run_of_checkpoint(const std::string& checkpoint) {
  std::error_code error;
  const fs::path folder = fs::weakly_canonical(checkpoint, error).parent_path();
  const fs::path run = folder.parent_path();
  return checkpoints_folder(run.string()) == folder ? run.string() : std::string();
}

bool has_checkpoints_folder(const std::string& run_dir) {
  const fs::path folder = checkpoints_folder(run_dir);
  return base::is_folder(folder) && !path_exists(folder / "config.json");
}

std::vector<std::string> checkpoints_of_run(const std::string& path) {
  require_folder(path);
  const std::string run_dir = run_at(path);
  const std::string folder = checkpoints_folder(run_dir);
  if (!is_run(run_dir)) {
    fail(ErrorKind::checkpoint,
         "'{}' is not a run folder: it has neither checkpoints nor config.json; give the "
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
    fail(ErrorKind::checkpoint, "run folder '{}' has no checkpoint; {}", path,
         path_exists(final) ? fmt::format("its model is {}", final)
                            : "train with --checkpoint-every to write some");
  }
  return paths;
}

std::string model_file_in(const std::string& folder) {
  if (path_exists(fs::path(folder) / "__0_0.distcp")) {
    fail(ErrorKind::checkpoint,
         "'{}' is a checkpoint of torch.distributed.checkpoint; convert it to a file: python -m "
         "torch.distributed.checkpoint.format_utils dcp_to_torch FOLDER NEW_FILE",
         folder);
  }
  for (const char* name : {"model.safetensors", "model.safetensors.index.json", "pytorch_model.bin",
                           "pytorch_model.bin.index.json"}) {
    std::string path = (fs::path(folder) / name).string();
    if (path_exists(path)) return path;
  }
  return {};
}

void refuse_missing_weights(const std::string& folder) {
  if (const std::string file = config::gguf_file_in(folder); !file.empty()) {
    fail(ErrorKind::checkpoint,
         "'{}' is in the GGUF format, and no other weights are beside it; {}", file,
         config::kConvertGguf);
  }
  if (config::hugging_face_model_in(folder)) {
    fail(ErrorKind::checkpoint,
         "'{}' has the config.json of a Hugging Face model, but no weights: model.safetensors, "
         "pytorch_model.bin or the index of their shards; download them, too",
         folder);
  }
}

void refuse_piece(const std::string& file) {
  static const std::regex kPiece(
      R"((?:pytorch_)?model-[0-9]+-of-0*([2-9]|[1-9][0-9]+)\.(?:safetensors|bin))");
  const std::string name = fs::path(file).filename().string();
  std::smatch found;
  if (!std::regex_match(name, found, kPiece)) return;
  const std::string folder = base::parent_folder(file);
  if (!path_exists(fs::path(folder) / kManifestName)) {
    fail(ErrorKind::checkpoint,
         "'{}' is one of {} shards of a model; give the folder with all of them and their index, "
         "{}",
         file, found[1].str(), folder);
  }
  fail(ErrorKind::checkpoint,
       "'{}' is one of {} model files of a checkpoint; give the checkpoint, {}, or its weights in "
       "one file: dtrain checkpoint export {} FILE.safetensors",
       file, found[1].str(), folder, folder);
}

std::string weights_at(const std::string& path) {
  require_folder(path);
  const std::string folder = run_at(path);
  const std::string inside = model_file_in(folder);
  if (!inside.empty() && !is_checkpoint(folder)) return inside;
  const std::string final = final_model(folder);
  if (is_checkpoint(folder) || !list_steps(checkpoints_folder(folder)).empty()) {
    return checkpoints_at(folder).front();
  }
  if (path_exists(final)) return final;
  refuse_missing_weights(folder);
  if (!is_run(folder)) {
    fail(ErrorKind::checkpoint,
         "'{}' has no model: neither checkpoints nor model.safetensors, pytorch_model.bin or the "
         "index of their shards; give the --run-dir of a run, a model file, or the folder of a "
         "Hugging Face model with its config.json and weights",
         folder);
  }
  return checkpoints_at(folder).front();
}

std::string final_model(const std::string& run_dir) {
  return (fs::path(run_dir) / "final" / "model.safetensors").string();
}

}  // namespace dtrain::checkpoint::store
