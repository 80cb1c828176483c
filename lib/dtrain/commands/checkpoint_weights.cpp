#include "dtrain/commands/checkpoint_weights.h"

#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "dtrain/base/error.h"
#include "dtrain/base/log.h"
#include "dtrain/base/path_kind.h"
#include "dtrain/checkpoint/reader_source.h"
#include "dtrain/checkpoint/store/locate.h"
#include "dtrain/checkpoint/store/names.h"
#include "dtrain/checkpoint/store/verify.h"
#include "dtrain/train/model_description.h"

namespace dtrain::commands {
namespace {

namespace fs = std::filesystem;
namespace store = checkpoint::store;
using base::ErrorKind;
using checkpoint::kWeightPrefix;
using checkpoint::format::FileInfo;
using checkpoint::format::PieceInfo;

bool holds_weights(const FileInfo& file) {
  return std::ranges::any_of(
      file.pieces, [](const PieceInfo& piece) { return piece.tensor.starts_with(kWeightPrefix); });
}

// Opens a checkpoint of a run and checks that its name gives its step.
store::Reader open_step(const std::string& checkpoint) {
  store::Reader reader = open_weights(checkpoint);
  const std::int64_t step = reader.manifest().step;
  if (fs::path(checkpoint).filename() == store::checkpoint_name(step)) return reader;
  base::fail(ErrorKind::checkpoint,
             "checkpoint '{}' is not of the step that it is named after: its manifest has step {}",
             checkpoint, step);
}

// may_vanish: returns empty if a checkpoint was removed meanwhile, as by a run that still trains.
std::optional<store::Reader> first_whole(const std::string& run_dir,
                                         const std::vector<std::string>& checkpoints,
                                         bool may_vanish) {
  for (const std::string& checkpoint : checkpoints) {
    try {
      return open_step(checkpoint);
    } catch (const base::Error& error) {
      if (error.kind() != ErrorKind::checkpoint) throw;
      if (may_vanish && !base::is_there(checkpoint)) return std::nullopt;
      base::log_warning("{}; trying an older one", error.what());
    }
  }
  base::fail(ErrorKind::checkpoint, "none of the {} checkpoints of '{}' is complete",
             checkpoints.size(), run_dir);
}

}  // namespace

store::Reader open_weights(const std::string& checkpoint) {
  store::Reader reader(checkpoint);
  reader.open_files_of(kWeightPrefix);
  for (const FileInfo& file : reader.manifest().contents.files) {
    if (holds_weights(file)) store::verify_file(checkpoint, file);
  }
  return reader;
}

store::Reader open_newest_weights(const std::string& run_dir) {
  std::vector<std::string> seen;
  while (true) {
    const std::vector<std::string> checkpoints = store::checkpoints_at(run_dir);
    // A checkpoint that is listed again was not removed: it may be a dangling link.
    const bool may_vanish = checkpoints != seen;
    if (auto found = first_whole(run_dir, checkpoints, may_vanish)) return std::move(*found);
    seen = checkpoints;
  }
}

config::ModelConfig model_of(const store::Reader& reader) {
  const auto config = nlohmann::ordered_json::parse(reader.manifest().config);
  const auto model = config.value("model", nlohmann::ordered_json::object());
  return train::parse_description(model.dump(),
                                  fmt::format("checkpoint '{}': bad configuration", reader.path()));
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
