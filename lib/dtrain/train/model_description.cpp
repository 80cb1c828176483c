#include "dtrain/train/model_description.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "dtrain/base/error.h"
#include "dtrain/checkpoint/state.h"
#include "dtrain/config/family.h"
#include "dtrain/config/saved_run.h"
#include "dtrain/model/family.h"

namespace dtrain::train {
namespace {

using base::ErrorKind;
using checkpoint::format::SafetensorsFile;
using checkpoint::format::TensorView;
using config::ModelConfig;

model::TensorShapes shapes_of(const SafetensorsFile& file) {
  const bool is_storage = has_storage_shapes(file);
  return tensor_shapes(file, is_storage ? checkpoint::kWeightPrefix : "", is_storage);
}

}  // namespace

std::string describe(const ModelConfig& model) {
  config::Config config;
  config.model = model;
  const auto json = nlohmann::ordered_json::parse(to_json(config::Command::train, config));
  return json.at("model").dump();
}

ModelConfig parse_description(std::string_view json, const std::string& origin) {
  try {
    const ModelConfig model = config::from_json(fmt::format(R"({{"model": {}}})", json)).model;
    config::family_of(model).check(model);
    return model;
  } catch (const base::Error& error) {
    base::fail(ErrorKind::checkpoint, "{}: {}", origin, error.what());
  }
}

bool has_storage_shapes(const SafetensorsFile& file) {
  return std::any_of(file.tensors().begin(), file.tensors().end(), [](const TensorView& tensor) {
    return tensor.name.starts_with(checkpoint::kWeightPrefix);
  });
}

std::vector<checkpoint::NamedTensor> exported_buffers(const model::Model& model) {
  std::vector<checkpoint::NamedTensor> buffers;
  for (const model::ExportedBuffer& buffer : model.buffers) {
    buffers.push_back({buffer.name, buffer.value});
  }
  return buffers;
}

model::TensorShapes tensor_shapes(const SafetensorsFile& file, const std::string& prefix,
                                  bool is_storage) {
  model::TensorShapes tensors{.path = file.path(), .prefix = prefix, .is_storage = is_storage};
  for (const TensorView& tensor : file.tensors()) {
    if (!tensor.name.starts_with(prefix)) continue;
    tensors.shapes.emplace(tensor.name.substr(prefix.size()), tensor.shape);
  }
  return tensors;
}

ModelConfig recognised_model(const model::TensorShapes& tensors, const model::UserHints& told) {
  // A description of tensors goes the same way as text, whose ranges are checked.
  return parse_description(describe(model::recognise(tensors, told)),
                           fmt::format("model file '{}': bad shapes", tensors.path));
}

ModelConfig model_of(const SafetensorsFile& file, const model::UserHints& told) {
  const auto found = file.metadata().find(kModelKey);
  const ModelConfig model =
      found == file.metadata().end()
          ? recognised_model(shapes_of(file), told)
          : parse_description(found->second, fmt::format("model file '{}': bad metadata '{}'",
                                                         file.path(), kModelKey));
  model::check_told(file.path(), told.levels_flag, told.levels, model.levels);
  model::family_of(model).check_own(model, told, file.path());
  return model;
}

}  // namespace dtrain::train
