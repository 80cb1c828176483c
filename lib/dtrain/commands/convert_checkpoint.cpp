#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dtrain/base/log.h"
#include "dtrain/checkpoint/model_file.h"
#include "dtrain/checkpoint/state.h"
#include "dtrain/checkpoint/store/commit.h"
#include "dtrain/checkpoint/store/described_model.h"
#include "dtrain/checkpoint/store/names.h"
#include "dtrain/checkpoint/store/removal.h"
#include "dtrain/checkpoint/store/shard_writer.h"
#include "dtrain/commands/commands.h"
#include "dtrain/commands/internal/hugging_face_export.h"
#include "dtrain/commands/internal/opened_model.h"
#include "dtrain/config/saved_run.h"
#include "dtrain/model/family.h"
#include "dtrain/parallel/precision.h"
#include "dtrain/train/model_file.h"

namespace dtrain::commands {
namespace {

using base::ErrorKind;
using checkpoint::format::Dtype;
using checkpoint::format::TensorView;
using checkpoint::format::WeightFile;
namespace format = checkpoint::format;
namespace store = checkpoint::store;

// The dtype of the parameters in the file; read_model_file reports missing ones.
at::ScalarType dtype_of(const WeightFile& file, const param::ParameterSpecs& specs) {
  const bool is_double =
      std::any_of(specs.begin(), specs.end(), [&](const param::ParameterSpec& spec) {
        const TensorView* const tensor = file.find(spec.name);
        return tensor != nullptr && tensor->dtype == Dtype::f64;
      });
  return is_double ? at::kDouble : at::kFloat;
}

// The specs with the names and shapes of checkpoints in place of the reference's.
param::ParameterSpecs storage_specs(param::ParameterSpecs specs) {
  for (param::ParameterSpec& spec : specs) {
    spec.name = checkpoint::kWeightPrefix + spec.name;
    spec.export_view = spec.shape;
    for (std::size_t dim = 0; dim < spec.shape.size(); ++dim) {
      spec.export_order[dim] = static_cast<std::int64_t>(dim);
    }
    spec.export_order.resize(spec.shape.size());
    spec.joined_dims = 1;
  }
  return specs;
}

param::Arena read_imported(const WeightFile& file, const model::Model& model) {
  const bool is_storage = file.has_storage_shapes();
  const param::ParameterSpecs specs =
      is_storage ? storage_specs(model.parameters) : model.parameters;
  const checkpoint::Constants constants =
      is_storage ? checkpoint::Constants() : train::constants_of(model);
  checkpoint::LoadedModel read =
      checkpoint::read_model_file(file, specs, constants, dtype_of(file, specs));
  if (!read.note.empty()) base::log_info("{}", read.note);
  return std::move(read.weights);
}

std::string without_trailing_slashes(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
}

void write_checkpoint(const std::string& folder, std::span<const store::PieceBytes> pieces,
                      format::Manifest manifest) {
  base::Disk disk(ErrorKind::checkpoint);
  const std::string temporary = fmt::format("{}.tmp-{}", folder, manifest.run);
  disk.make_folder(temporary);
  try {
    manifest.contents =
        store::write_shard(disk, {.folder = temporary}, pieces, store::RateLimiter());
    store::commit_as(disk, temporary, folder, manifest);
  } catch (...) {
    store::remove_folder_and_files(disk, temporary);
    throw;
  }
}

using checkpoint::kWeightPrefix;

at::ScalarType saved_dtype(const model::Model& model, const store::Reader& reader) {
  const auto* info = reader.find(kWeightPrefix + model.parameters.front().name);
  return info == nullptr ? at::kFloat : checkpoint::scalar_type_of(info->dtype);
}

void export_model_file(store::Reader& reader, const config::ModelConfig& settings,
                       const model::Model& model, at::ScalarType dtype, const std::string& file) {
  const param::Arena arena = read_weights(reader, model, dtype);
  format::Metadata metadata = train::tokenizer_metadata(train::saved_tokenizer(reader.path()));
  metadata.emplace(train::kModelKey, config::model_to_json(settings));
  checkpoint::write_model_file(file, model.parameters, arena, train::exported_buffers(model),
                               metadata);
}

}  // namespace

void import_checkpoint(const config::Config& config, const Output& output) {
  const config::ImportConfig& wanted = config.importing;
  const auto file = WeightFile::open(wanted.file);
  const config::ModelConfig described =
      train::model_of(file, {.layers = wanted.layers, .own = config.model.family});
  const auto model = model::make_model(described, /*seq_len=*/1);
  const param::Arena arena = read_imported(file, *model);
  const checkpoint::State state = checkpoint::state_of(model->parameters, arena);
  checkpoint::check_finite(state, wanted.file);
  format::Manifest manifest;
  manifest.run = store::new_start_id();
  manifest.config = fmt::format(R"({{"model": {}}})", config::model_to_json(described));
  const std::string folder = without_trailing_slashes(wanted.checkpoint);
  write_checkpoint(folder, checkpoint::bytes_of(state), std::move(manifest));
  output(fmt::format("{}: {} parameters of {}\n", folder, model->num_elements(), wanted.file));
}

void export_checkpoint(const config::Config& config, const Output& output) {
  const config::ExportConfig& wanted = config.exporting;
  const std::vector<std::string> checkpoints = store::checkpoints_at(wanted.checkpoint);
  std::optional<store::Reader> opened;
  store::with_fallback_hint(checkpoints,
                            [&] { opened.emplace(open_weights(checkpoints.front())); });
  store::Reader& reader = *opened;
  const config::ModelConfig described = store::described_model(reader);
  const auto model = model::make_model(described, /*seq_len=*/1);
  const at::ScalarType dtype = wanted.dtype == config::Dtype::automatic
                                   ? saved_dtype(*model, reader)
                                   : parallel::dtype_of(wanted.dtype);
  std::string target = wanted.file;
  if (wanted.format == config::ExportFormat::huggingface) {
    target = without_trailing_slashes(target);
    export_hugging_face(reader, {.settings = described,
                                 .model = *model,
                                 .dtype = dtype,
                                 .max_file_bytes = wanted.shard_size.count,
                                 .folder = target});
  } else {
    export_model_file(reader, described, *model, dtype, target);
  }
  output(fmt::format("{}: {} parameters of {}, step {}\n", target, model->num_elements(),
                     reader.path(), reader.manifest().step));
}

}  // namespace dtrain::commands
