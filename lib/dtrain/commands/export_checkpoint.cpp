#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>

#include "dtrain/checkpoint/model_file.h"
#include "dtrain/checkpoint/reader_source.h"
#include "dtrain/checkpoint/store/locate.h"
#include "dtrain/checkpoint/store/verify.h"
#include "dtrain/commands/commands.h"
#include "dtrain/model/registry.h"
#include "dtrain/parallel/precision.h"
#include "dtrain/train/model_description.h"
#include "dtrain/train/model_tokenizer.h"

namespace dtrain::commands {
namespace {

using checkpoint::kWeightPrefix;
using checkpoint::format::FileInfo;
using checkpoint::format::PieceInfo;
namespace store = checkpoint::store;

bool holds_weights(const FileInfo& file) {
  return std::any_of(file.pieces.begin(), file.pieces.end(), [](const PieceInfo& piece) {
    return piece.tensor.starts_with(kWeightPrefix);
  });
}

store::Reader open_verified(const std::string& path) {
  store::Reader reader(path);
  for (const FileInfo& file : reader.manifest().contents.files) {
    if (holds_weights(file)) store::verify_file(path, file);
  }
  return reader;
}

config::ModelConfig model_of(const store::Reader& reader) {
  const auto config = nlohmann::ordered_json::parse(reader.manifest().config);
  const auto model = config.value("model", nlohmann::ordered_json::object());
  return train::parse_description(model.dump(),
                                  fmt::format("checkpoint '{}': bad configuration", reader.path()));
}

at::ScalarType saved_dtype(const model::Model& model, const store::Reader& reader) {
  const auto* info = reader.find(kWeightPrefix + model.parameters.front().name);
  return info == nullptr ? at::kFloat : checkpoint::scalar_type_of(info->dtype);
}

param::Arena read_weights(store::Reader& reader, const model::Model& model, at::ScalarType dtype) {
  checkpoint::ReaderSource source(reader);
  param::Arena arena(param::ArenaLayout(model.parameters), dtype, param::private_memory);
  for (const param::ParameterId id : model.parameters.ids()) {
    const param::ParameterSpec& spec = model.parameters[id];
    source.read({.name = kWeightPrefix + spec.name,
                 .global_shape = spec.shape,
                 .box = checkpoint::format::whole(spec.shape),
                 .tensor = arena.view(id)});
  }
  return arena;
}

}  // namespace

void export_checkpoint(const config::Config& config, const Output& output) {
  const config::ExportConfig& wanted = config.exporting;
  store::Reader reader = open_verified(store::checkpoints_at(wanted.checkpoint).front());
  const config::ModelConfig described = model_of(reader);
  const auto model = model::make_model(described, /*seq_len=*/1);
  const at::ScalarType dtype = wanted.dtype == config::Dtype::automatic
                                   ? saved_dtype(*model, reader)
                                   : parallel::dtype_of(wanted.dtype);
  const param::Arena arena = read_weights(reader, *model, dtype);
  checkpoint::format::Metadata metadata =
      train::tokenizer_metadata(train::saved_tokenizer(reader.path()));
  metadata.emplace(train::kModelKey, train::describe(described));
  checkpoint::write_model_file(wanted.file, model->parameters, arena,
                               train::exported_buffers(*model), metadata);
  output(fmt::format("{}: {} parameters of {}, step {}\n", wanted.file, model->num_elements(),
                     reader.path(), reader.manifest().step));
}

}  // namespace dtrain::commands
