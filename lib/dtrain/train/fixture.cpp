#include "dtrain/train/fixture.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string_view>

#include "dtrain/base/error.h"
#include "dtrain/checkpoint/tensor_file.h"
#include "dtrain/data/token_file.h"

namespace dtrain::train {
namespace {

using checkpoint::to_tensor;
using checkpoint::format::SafetensorsFile;

// All tensors whose name begins with `prefix`, without it.
std::map<std::string, at::Tensor> with_prefix(const SafetensorsFile& file,
                                              std::string_view prefix) {
  std::map<std::string, at::Tensor> found;
  for (const auto& view : file.tensors()) {
    if (!view.name.starts_with(prefix)) continue;
    found.emplace(view.name.substr(prefix.size()), to_tensor(view));
  }
  return found;
}

std::int64_t count_levels(const SafetensorsFile& file) {
  std::int64_t levels = 0;
  while (file.find("act.layer" + std::to_string(levels) + ".out") != nullptr) ++levels;
  if (levels == 0) {
    base::fail(base::ErrorKind::checkpoint,
               "{}: no tensor 'act.layer0.out', so the number of levels is not known", file.path());
  }
  return levels;
}

config::ModelConfig model_of(const SafetensorsFile& file) {
  const auto& encoder = file.at("weight.encoder");
  const auto& embed = file.at("weight.embed.weight");
  if (encoder.shape.size() != 3 || embed.shape.size() != 2) {
    base::fail(base::ErrorKind::checkpoint,
               "{}: 'weight.encoder' or 'weight.embed.weight' has another number of dims",
               file.path());
  }
  config::ModelConfig model;
  model.levels = count_levels(file);
  model.heads = encoder.shape[0];
  model.width = encoder.shape[1];
  model.neurons = encoder.shape[2];
  model.vocab = embed.shape[0];
  model.dropout = 0;
  return model;
}

// The reference's own spread between float32, float64 and thread counts, from the meta.json beside
// the fixture.
std::map<std::string, double> read_noise(const std::string& path) {
  const std::filesystem::path fixture(path);
  std::ifstream file(fixture.parent_path() / "meta.json");
  if (!file) return {};
  const auto meta = nlohmann::json::parse(file, nullptr, /*allow_exceptions=*/false);
  const auto key = nlohmann::json::json_pointer("/cases/" + fixture.stem().string());
  if (meta.is_discarded() || !meta.contains(key)) return {};
  const auto& entry = meta.at(key);
  std::map<std::string, double> noise;
  const auto widen = [&](const std::string& check, double value) {
    noise[check] = std::max(noise[check], value);
  };
  const auto rounding = entry.value("fp32_vs_fp64", nlohmann::json::object());
  widen("logits", rounding.value("logits_relmax", 0.0));
  for (const auto& gradients :
       {rounding.value("grad_relmax", nlohmann::json::object()),
        entry.value("threads1_vs_threads2_grad_relmax", nlohmann::json::object())}) {
    for (const auto& [name, value] : gradients.items()) widen("grad." + name, value.get<double>());
  }
  return noise;
}

TokenRows rows_at(const data::TokenFile& text, const std::vector<std::int64_t>& offsets,
                  std::int64_t length) {
  const auto rows = static_cast<std::int64_t>(offsets.size());
  const auto options = at::TensorOptions().dtype(at::kLong);
  TokenRows result{at::empty({rows, length}, options), at::empty({rows, length}, options)};
  for (std::size_t r = 0; r < offsets.size(); ++r) {
    const auto begin = static_cast<std::int64_t>(r) * length;
    const auto count = static_cast<std::size_t>(length);
    text.copy(offsets[r], {result.inputs.mutable_data_ptr<std::int64_t>() + begin, count});
    text.copy(offsets[r] + 1, {result.targets.mutable_data_ptr<std::int64_t>() + begin, count});
  }
  return result;
}

config::TrainConfig optimizer_of(const nlohmann::json& json) {
  config::TrainConfig train;
  train.lr = json.at("lr").get<double>();
  train.weight_decay = json.at("weight_decay").get<double>();
  train.beta1 = json.at("betas").at(0).get<double>();
  train.beta2 = json.at("betas").at(1).get<double>();
  train.eps = json.at("eps").get<double>();
  train.grad_clip = json.at("clip").is_null() ? 0.0 : json.at("clip").get<double>();
  train.steps = json.at("steps").get<std::int64_t>();
  return train;
}

Trajectory parse_trajectory(const nlohmann::json& json, const std::string& path,
                            const std::string& name) {
  const auto& run = json.at("runs").at(name);
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  const auto text =
      data::TokenFile::open((folder / json.at("text").get<std::string>()).string(), 256);
  Trajectory trajectory;
  trajectory.train = optimizer_of(json);
  for (const auto& offsets : json.at("offsets")) {
    trajectory.steps.push_back(
        rows_at(text, offsets.get<std::vector<std::int64_t>>(), json.at("T").get<std::int64_t>()));
  }
  trajectory.loss = run.at("loss").get<std::vector<double>>();
  trajectory.loss_fp64 = run.at("loss_fp64").get<std::vector<double>>();
  trajectory.grad_norm_fp64 = run.at("grad_norm_fp64").get<std::vector<double>>();
  for (const auto& [parameter, values] : run.at("final_param_l2_and_sum_fp64").items()) {
    trajectory.final_l2_fp64[parameter] = values.at(0).get<double>();
  }
  const auto& final_eval = run.at("final_eval");
  trajectory.final_batch = rows_at(text, final_eval.at("offsets").get<std::vector<std::int64_t>>(),
                                   final_eval.at("T").get<std::int64_t>());
  trajectory.final_loss = final_eval.at("loss").get<double>();
  for (const auto& [what, difference] : run.at("max_abs_loss_diff_vs_fp32").items()) {
    trajectory.noise = std::max(trajectory.noise, difference.get<double>());
  }
  return trajectory;
}

}  // namespace

Fixture read_fixture(const std::string& path) {
  const SafetensorsFile file = SafetensorsFile::open(path);
  Fixture fixture{.path = path,
                  .model = model_of(file),
                  .weights = with_prefix(file, "weight."),
                  .batch = {to_tensor(file.at("inputs")), to_tensor(file.at("targets"))},
                  .loss = to_tensor(file.at("loss")).item<double>(),
                  .logits = to_tensor(file.at("logits")),
                  .gradients = with_prefix(file, "grad."),
                  .activations = {},
                  .noise = read_noise(path)};
  for (auto& [name, value] : with_prefix(file, "act.")) {
    fixture.activations.emplace("act." + name, value);
  }
  return fixture;
}

Trajectory read_trajectory(const std::string& path, const std::string& name) {
  std::ifstream file(path);
  if (!file) base::fail(base::ErrorKind::data, "{}: cannot be read; check --trajectory", path);
  try {
    return parse_trajectory(nlohmann::json::parse(file), path, name);
  } catch (const nlohmann::json::exception& error) {
    base::fail(base::ErrorKind::data, "{}: no usable trajectory '{}' ({}); check --name", path,
               name, error.what());
  }
}

}  // namespace dtrain::train
