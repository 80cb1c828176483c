#include "start_paths.h"

#include <filesystem>
#include <string>

#include "dtrain/base/error.h"
#include "dtrain/base/nearest.h"
#include "dtrain/base/path_kind.h"
#include "dtrain/checkpoint/format/safetensors.h"
#include "dtrain/checkpoint/store/names.h"
#include "model_path.h"

namespace dtrain::app {
namespace {

namespace fs = std::filesystem;
namespace store = checkpoint::store;
using base::ErrorKind;
using base::fail;
using base::is_folder;
using base::is_there;

// "auto" for what other programs take in its place.
std::string_view meant_word(std::string_view word) {
  for (const std::string_view name : {"latest", "last", "newest", "true", "yes", "on"}) {
    if (word == name) return "auto";
  }
  constexpr std::string_view kWords[] = {"auto", "none"};
  return base::nearest(word, kWords);
}

void check_resume(const config::Resume& resume) {
  if (resume.kind != config::Resume::Kind::path) return;
  const std::string& path = resume.path;
  constexpr std::string_view kWanted =
      "give auto, or a run folder, or a checkpoint in it (RUN/checkpoints/step-N)";
  if (!is_there(path)) {
    const std::string advice = base::did_you_mean(meant_word(path));
    fail(ErrorKind::checkpoint, "--resume {}: no such file or folder{}", path,
         advice.empty() ? fmt::format("; {}", kWanted) : advice);
  }
  if (!is_folder(path)) {
    fail(ErrorKind::checkpoint,
         "--resume {}: it is a file, not a checkpoint's folder; {}; the weights of a model file "
         "are taken with --init-from",
         path, kWanted);
  }
  if (is_there(fs::path(path) / "model.safetensors") &&
      !is_there(fs::path(path) / store::kManifestName)) {
    fail(ErrorKind::checkpoint,
         "--resume {}: it holds a model without the state of a run; give a checkpoint, or take the "
         "weights alone with --init-from {}/model.safetensors",
         path, path);
  }
  if (const std::string run = store::run_at(path); run != path) {
    fail(
        ErrorKind::checkpoint,
        "--resume {}: it holds the checkpoints of a run; give the run (--resume {}) or one of them",
        path, run);
  }
  if (store::has_checkpoints_folder(path)) return;
  (void)store::checkpoints_at(path);  // refuses what is neither run nor checkpoint
}

void check_init_from(const std::string& path) {
  if (path.empty()) return;
  if (!is_there(path)) {
    fail(ErrorKind::checkpoint, "--init-from {}: no such file or folder; {}", path,
         path == "resume"    ? "to resume a run, give --resume auto"
         : path == "scratch" ? "omit it to start from new weights"
                             : "give a model file (RUN/final/model.safetensors), a checkpoint or a "
                               "run folder");
  }
  const std::string weights = is_folder(path) ? store::weights_at(path) : path;
  if (is_folder(weights)) return;
  open_for("--init-from", [&] { (void)checkpoint::format::SafetensorsFile::open(weights); });
}

}  // namespace

void check_start_paths(const config::Config& config) {
  const config::CheckpointConfig& wanted = config.checkpoint;
  check_resume(wanted.resume);
  // A resumed run no longer needs the file of its initial weights.
  const bool resumes = wanted.resume.is_automatic() &&
                       !store::list_steps(store::checkpoints_folder(config.run.dir)).empty();
  if (!resumes) check_init_from(wanted.init_from);
}

}  // namespace dtrain::app
