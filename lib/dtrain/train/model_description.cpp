#include "dtrain/train/model_description.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "dtrain/base/error.h"
#include "dtrain/checkpoint/state.h"
#include "dtrain/config/json.h"

namespace dtrain::train {
namespace {

using base::ErrorKind;
using checkpoint::format::SafetensorsFile;
using checkpoint::format::TensorView;
using config::ModelConfig;

/// A dim of a tensor that must have `rank` dims.
std::int64_t dim_of(const SafetensorsFile& file, const std::string& tensor, std::size_t rank,
                    std::size_t dim) {
  const std::vector<std::int64_t>& shape = file.at(tensor).shape;
  if (shape.size() != rank) {
    base::fail(ErrorKind::checkpoint, "model file '{}': tensor '{}' has {} dims, a BDH's has {}",
               file.path(), tensor, shape.size(), rank);
  }
  return shape[dim];
}

// Levels with matrices of their own; 0 where all share one set.
std::int64_t count_untied_levels(const SafetensorsFile& file, const std::string& prefix) {
  std::int64_t levels = 0;
  while (file.find(fmt::format("{}levels.{}.encoder", prefix, levels)) != nullptr) ++levels;
  return levels;
}

[[noreturn]] void refuse_silent(const SafetensorsFile& file, std::string_view what,
                                std::string_view advice) {
  base::fail(ErrorKind::checkpoint,
             "model file '{}' does not say how many {} its model has; give {}", file.path(), what,
             advice);
}

void set_heads(const SafetensorsFile& file, const std::string& encoder, std::int64_t told,
               ModelConfig& sizes) {
  const std::int64_t all_neurons = dim_of(file, encoder, 2, 0);
  if (told == 0) refuse_silent(file, "heads", "--heads NH");
  if (all_neurons % told != 0) {
    base::fail(ErrorKind::usage, "--heads {}: '{}' of '{}' has {} neurons, no multiple of it", told,
               encoder, file.path(), all_neurons);
  }
  sizes.heads = told;
  sizes.neurons = all_neurons / told;
}

// All sizes show in the weights except the number of tied levels, and in checkpoints' shapes heads.
ModelConfig model_from_tensors(const SafetensorsFile& file, const Told& told) {
  const bool is_storage = has_storage_shapes(file);
  const std::string prefix = is_storage ? checkpoint::kWeightPrefix : "";
  const std::int64_t untied = count_untied_levels(file, prefix);
  const std::string encoder = prefix + (untied > 0 ? "levels.0.encoder" : "encoder");
  const std::string embed = prefix + "embed.weight";
  ModelConfig sizes;
  sizes.levels = untied > 0 ? untied : told.levels;
  sizes.tie_levels = untied == 0;
  sizes.vocab = dim_of(file, embed, 2, 0);
  sizes.width = dim_of(file, embed, 2, 1);
  if (is_storage) {
    set_heads(file, encoder, told.heads, sizes);
  } else {
    sizes.heads = dim_of(file, encoder, 3, 0);
    sizes.neurons = dim_of(file, encoder, 3, 2);
  }
  if (sizes.levels == 0) {
    refuse_silent(file, "levels", fmt::format("{} L", told.levels_flag));
  }
  return sizes;
}

void check_told(const SafetensorsFile& file, std::string_view flag, std::int64_t told,
                std::int64_t found) {
  if (told == 0 || told == found) return;
  base::fail(ErrorKind::usage, "{} {}: the model of '{}' has {}; leave the flag out", flag, told,
             file.path(), found);
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
    return config::from_json(fmt::format(R"({{"model": {}}})", json)).model;
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

ModelConfig model_of(const SafetensorsFile& file, const Told& told) {
  const auto found = file.metadata().find(kModelKey);
  // What tensors say goes the same way as text, whose ranges are checked.
  const ModelConfig sizes =
      found == file.metadata().end()
          ? parse_description(describe(model_from_tensors(file, told)),
                              fmt::format("model file '{}': bad shapes", file.path()))
          : parse_description(found->second, fmt::format("model file '{}': bad metadata '{}'",
                                                         file.path(), kModelKey));
  check_told(file, told.levels_flag, told.levels, sizes.levels);
  check_told(file, "--heads", told.heads, sizes.heads);
  if (sizes.neurons % 2 != 0) {
    base::fail(ErrorKind::checkpoint, "model file '{}' has {} neurons per head, an odd number",
               file.path(), sizes.neurons);
  }
  return sizes;
}

}  // namespace dtrain::train
