#include "settings/model_path.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <system_error>
#include <vector>

#include "dtrain/base/error.h"
#include "dtrain/base/io/path_kind.h"
#include "dtrain/base/log.h"
#include "dtrain/base/text/nearest.h"
#include "dtrain/checkpoint/format/safetensors.h"
#include "dtrain/checkpoint/format/weight_file.h"
#include "dtrain/checkpoint/store/described_model.h"
#include "dtrain/checkpoint/store/names.h"
#include "dtrain/checkpoint/store/reader.h"
#include "dtrain/config/hugging_face/unsupported_models.h"
#include "dtrain/report/run_record.h"

namespace dtrain::app {
namespace {

namespace fs = std::filesystem;
namespace store = checkpoint::store;
using base::ErrorKind;
using base::fail;
using base::is_folder;
using base::path_exists;

// The step at which a run last ended, -1 if it never ended; nothing without a metrics.jsonl.
std::optional<std::int64_t> last_end(const std::string& run) {
  const fs::path path = fs::path(run) / "metrics.jsonl";
  std::error_code error;
  if (!fs::is_regular_file(path, error)) return std::nullopt;
  std::ifstream file(path, std::ios::binary);
  std::int64_t step = -1;
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(R"({"event":"end",)")) continue;
    const auto end = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    const auto found = end.is_object() ? end.find("step") : end.end();
    if (found != end.end() && found->is_number_integer()) step = found->get<std::int64_t>();
  }
  return step;
}

// True if the final model is older than the newest checkpoint: the run was resumed after its end.
bool is_outdated(const std::string& run, const std::vector<std::string>& checkpoints) {
  const auto end = last_end(run);
  const auto newest = store::step_of(fs::path(checkpoints.front()).filename().string());
  return end && newest && *newest > *end;
}

bool is_readable_model(const std::string& path) {
  try {
    (void)checkpoint::format::SafetensorsFile::open(path);
    return true;
  } catch (const base::Error& error) {
    base::log_warning("{}; trying the run's checkpoints", error.what());
    return false;
  }
}

// The final model of a run folder, or the folder itself, which means its newest checkpoint.
std::string model_of_run(const std::string& run) {
  const std::string final = store::final_model(run);
  const bool has_final = path_exists(final);
  const std::vector<std::string> checkpoints =
      has_final && !is_folder(store::checkpoints_folder(run)) ? std::vector<std::string>()
                                                              : store::checkpoints_of_run(run);
  if (checkpoints.empty() && !has_final) {
    fail(ErrorKind::checkpoint,
         "--from {}: the run has neither a final model nor a checkpoint yet; train with "
         "--checkpoint-every to write some",
         run);
  }
  if (!has_final) return run;
  if (checkpoints.empty()) return final;
  if (!is_outdated(run, checkpoints)) return is_readable_model(final) ? final : run;
  base::log_info("{} is older than {}: using the checkpoint", final, checkpoints.front());
  return run;
}

// "2 runs: a, b"
std::string some_names(const std::vector<std::string>& runs) {
  constexpr std::size_t kMost = 5;
  const auto first = std::span(runs).first(std::min(runs.size(), kMost));
  return fmt::format("{} run{}: {}{}", runs.size(), runs.size() == 1 ? "" : "s",
                     fmt::join(first, ", "), runs.size() > kMost ? ", ..." : "");
}

// Rejects a folder that is not a run; names the runs below it, if any.
[[noreturn]] void refuse_folder(const std::string& folder) {
  constexpr int kDepth = 2;  // enough for a hint
  const std::vector<std::string> runs = report::runs_below(folder, kDepth);
  fail(ErrorKind::checkpoint,
       "--from {}: {}; name a run folder, a checkpoint, a model file, or the folder of a Hugging "
       "Face model with its config.json and weights",
       folder,
       runs.empty() ? "it contains neither checkpoints nor a final model"
                    : fmt::format("it is not a run folder, but contains {}", some_names(runs)));
}

// Suggests "auto" for equivalent words of other programs.
std::string_view suggested_word(std::string_view word) {
  for (const std::string_view name : {"latest", "last", "newest", "true", "yes", "on"}) {
    if (word == name) return "auto";
  }
  constexpr std::string_view kWords[] = {"auto", "none"};
  return base::nearest(word, kWords);
}

}  // namespace

std::string model_path(const std::string& from) {
  if (!path_exists(from)) {
    fail(ErrorKind::checkpoint,
         "--from {}: no such file or folder; give a run folder, a checkpoint "
         "(RUN/checkpoints/step-N), a model file (RUN/final/model.safetensors) or a folder of a "
         "Hugging Face model{}",
         from, config::download_advice(from));
  }
  const fs::path path = fs::absolute(from).lexically_normal();
  const fs::path folder = path.has_filename() ? path : path.parent_path();
  if (!is_folder(from)) {
    if (!path_exists(folder.parent_path() / store::kManifestName)) return from;
    fail(
        ErrorKind::checkpoint,
        "--from {}: it is a file of a checkpoint, not a model file; give the checkpoint: --from {}",
        from, fs::path(from).parent_path().string());
  }
  if (store::is_checkpoint(from)) return from;
  if (const std::string inside = store::model_file_in(from); !inside.empty()) return inside;
  const bool has_models =
      store::has_checkpoints_folder(from) || path_exists(store::final_model(from));
  if (!has_models) store::refuse_missing_weights(from);
  const bool is_run = has_models || path_exists(folder / "config.json");
  if (is_run) return model_of_run(from);
  if (const std::string run = store::run_at(from); run != from) return run;
  refuse_folder(from);
}

void require_from(const std::string& from) {
  if (!from.empty()) return;
  fail(ErrorKind::usage,
       "--from is missing: give a run folder, a checkpoint or a model.safetensors");
}

void require_model_file(const std::string& model) {
  if (is_folder(model)) return;
  open_for("--from", [&] {
    store::refuse_piece(model);
    (void)checkpoint::format::WeightFile::open(model);
  });
}

void check_resume(const config::Resume& resume) {
  if (resume.kind != config::Resume::Kind::path) return;
  const std::string& path = resume.path;
  constexpr std::string_view kWanted =
      "give auto, or a run folder, or a checkpoint in it (RUN/checkpoints/step-N)";
  if (!path_exists(path)) {
    const std::string advice = base::did_you_mean(suggested_word(path));
    fail(ErrorKind::checkpoint, "--resume {}: no such file or folder{}", path,
         advice.empty() ? fmt::format("; {}", kWanted) : advice);
  }
  if (!is_folder(path)) {
    fail(ErrorKind::checkpoint,
         "--resume {}: it is a file, not a checkpoint folder; {}; to start from the weights of a "
         "model file, use --init-from",
         path, kWanted);
  }
  const std::string model = store::model_file_in(path);
  if (!model.empty() && !path_exists(fs::path(path) / store::kManifestName)) {
    fail(ErrorKind::checkpoint,
         "--resume {}: it contains a model without the state of a run; give a checkpoint, or start "
         "from the weights with --init-from {}",
         path, model);
  }
  if (const std::string run = store::run_at(path); run != path) {
    fail(ErrorKind::checkpoint,
         "--resume {}: it contains the checkpoints of a run; give the run (--resume {}) or one of "
         "them",
         path, run);
  }
  if (store::has_checkpoints_folder(path)) return;
  (void)store::checkpoints_at(path);  // throws if it is neither a run nor a checkpoint
}

std::optional<config::ModelConfig> model_of_weights(const std::string& path) {
  if (!path_exists(path)) {
    fail(ErrorKind::checkpoint, "--init-from {}: no such file or folder; {}", path,
         path == "resume" ? "to resume a run, give --resume auto"
         : path == "scratch"
             ? "omit it to start from new weights"
             : "give a model file (RUN/final/model.safetensors), a checkpoint, a run "
               "folder or a folder of a Hugging Face model" +
                   config::download_advice(path));
  }
  std::optional<config::ModelConfig> model;
  open_for("--init-from", [&] {
    const std::string weights = is_folder(path) ? store::weights_at(path) : path;
    if (is_folder(weights)) {
      model = store::described_model(store::Reader(weights));
      return;
    }
    store::refuse_piece(weights);
    model = store::described_model(checkpoint::format::WeightFile::open(weights));
  });
  return model;
}

}  // namespace dtrain::app
