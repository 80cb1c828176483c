#include "dtrain/commands/internal/opened_model.h"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <utility>
#include <vector>

#include "dtrain/base/error.h"
#include "dtrain/base/io/path_kind.h"
#include "dtrain/base/log.h"
#include "dtrain/checkpoint/model_file.h"
#include "dtrain/checkpoint/state.h"
#include "dtrain/checkpoint/store/described_model.h"
#include "dtrain/checkpoint/store/names.h"
#include "dtrain/checkpoint/store/reader.h"
#include "dtrain/model/family.h"
#include "dtrain/train/model_file.h"

namespace dtrain::commands {
namespace {

using base::ErrorKind;
using checkpoint::kWeightPrefix;
using checkpoint::format::FileInfo;
using checkpoint::format::PieceInfo;
using checkpoint::format::WeightFile;
namespace fs = std::filesystem;
namespace store = checkpoint::store;

// The latest checkpoint of the run whose final model the file is; empty if there is none.
std::string newest_checkpoint_beside(const std::string& file) {
  const fs::path whole = base::resolved_path(file);
  const fs::path run = whole.parent_path().parent_path();
  if (whole != store::final_model(run.string())) return {};
  const std::string folder = store::checkpoints_folder(run.string());
  const std::vector<std::int64_t> steps = store::list_steps(folder);
  return steps.empty() ? "" : (fs::path(folder) / store::checkpoint_name(steps.front())).string();
}

param::Arena read_model(const WeightFile& file, const model::Model& model,
                        const at::TensorOptions& options) {
  try {
    checkpoint::LoadedModel read =
        checkpoint::read_model_file(file, model.parameters, train::constants_of(model), options);
    checkpoint::check_finite(checkpoint::state_of(model.parameters, read.weights), file.path());
    if (!read.note.empty()) base::log_info("{}", read.note);
    return std::move(read.weights);
  } catch (const base::Error& error) {
    const std::string newest = newest_checkpoint_beside(file.path());
    if (error.kind() != ErrorKind::checkpoint || newest.empty()) throw;
    base::fail(error.kind(), "{}; to use the run's newest checkpoint instead, give --from {}",
               error.what(), newest);
  }
}

OpenedModel open_model_file(const std::string& path, const model::UserHints& hints) {
  const auto file = std::make_shared<WeightFile>(WeightFile::open(path));
  const config::ModelConfig settings = train::model_of(*file, hints);
  return {.settings = settings,
          .path = path,
          .open_tokenizer =
              [file, vocab = settings.vocab] { return train::tokenizer_of_model(*file, vocab); },
          .read_weights =
              [file](const model::Model& model, const at::TensorOptions& options) {
                return read_model(*file, model, options);
              }};
}

// path: a checkpoint, or a run folder for its latest complete checkpoint.
OpenedModel open_checkpoint(const std::string& path, const model::UserHints& hints) {
  const bool is_checkpoint = store::checkpoints_at(path).front() == path;
  const auto reader = std::make_shared<store::Reader>(is_checkpoint ? open_weights(path)
                                                                    : open_newest_weights(path));
  base::log_info("using the weights of step {}: {}", reader->manifest().step, reader->path());
  const config::ModelConfig settings = store::described_model(*reader);
  model::check_flag_agrees(reader->path(), hints.layers_flag, hints.layers, settings.layers);
  return {.settings = settings,
          .path = reader->path(),
          .open_tokenizer =
              [path = reader->path(), vocab = settings.vocab] {
                return train::tokenizer_of_checkpoint(path, vocab);
              },
          .read_weights =
              [reader](const model::Model& model, const at::TensorOptions& options) {
                param::Arena arena = read_weights(*reader, model, options);
                checkpoint::check_finite(checkpoint::state_of(model.parameters, arena),
                                         reader->path());
                return arena;
              }};
}

// Opens a checkpoint of a run and checks that its name gives its step.
store::Reader open_step(const std::string& checkpoint) {
  store::Reader reader = open_weights(checkpoint);
  const std::int64_t step = reader.manifest().step;
  if (fs::path(checkpoint).filename() == store::checkpoint_name(step)) return reader;
  base::fail(ErrorKind::checkpoint, "checkpoint '{}' has the wrong name: its manifest has step {}",
             checkpoint, step);
}

// may_vanish: returns empty if a checkpoint disappears, as when a running job prunes it.
std::optional<store::Reader> first_complete(const std::string& run_dir,
                                            const std::vector<std::string>& checkpoints,
                                            bool may_vanish) {
  for (const std::string& checkpoint : checkpoints) {
    try {
      return open_step(checkpoint);
    } catch (const base::Error& error) {
      if (error.kind() != ErrorKind::checkpoint) throw;
      if (may_vanish && !base::path_exists(checkpoint)) return std::nullopt;
      base::log_warning("{}; trying an older one", error.what());
    }
  }
  base::fail(ErrorKind::checkpoint,
             "none of the {} checkpoints of '{}' is complete; give a model file, or another run",
             checkpoints.size(), run_dir);
}

}  // namespace

OpenedModel open_model(const config::GenerateConfig& generate) {
  const model::UserHints hints{.layers = generate.from_layers, .layers_flag = "--from-layers"};
  return base::is_folder(generate.from) ? open_checkpoint(generate.from, hints)
                                        : open_model_file(generate.from, hints);
}

store::Reader open_weights(const std::string& checkpoint) {
  store::Reader reader(checkpoint);
  reader.open_files_of(kWeightPrefix);
  for (const FileInfo& file : reader.manifest().contents.files) {
    const bool holds_weights = std::ranges::any_of(file.pieces, [](const PieceInfo& piece) {
      return piece.tensor.starts_with(kWeightPrefix);
    });
    if (holds_weights) store::verify_file(checkpoint, file);
  }
  return reader;
}

store::Reader open_newest_weights(const std::string& run_dir) {
  std::vector<std::string> seen;
  while (true) {
    const std::vector<std::string> checkpoints = store::checkpoints_at(run_dir);
    // A checkpoint that is listed twice was not removed: it may be a dangling link.
    const bool may_vanish = checkpoints != seen;
    if (auto found = first_complete(run_dir, checkpoints, may_vanish)) return std::move(*found);
    seen = checkpoints;
  }
}

param::Arena read_weights(store::Reader& reader, const model::Model& model,
                          const at::TensorOptions& options) {
  checkpoint::ReaderSource source(reader);
  const auto allocate = [&](std::int64_t bytes) {
    return at::zeros({bytes}, options.dtype(at::kByte));
  };
  param::Arena arena(param::ArenaLayout(model.parameters),
                     c10::typeMetaToScalarType(options.dtype()), allocate);
  for (const param::ParameterId id : model.parameters.ids()) {
    const param::ParameterSpec& spec = model.parameters[id];
    source.read({.name = kWeightPrefix + spec.name,
                 .global_shape = spec.shape,
                 .box = checkpoint::format::whole(spec.shape),
                 .tensor = arena.view(id)});
  }
  return arena;
}

}  // namespace dtrain::commands
