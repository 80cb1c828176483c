#include "dtrain/commands/internal/fixture.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string_view>

#include "dtrain/base/error.h"
#include "dtrain/checkpoint/tensor_file.h"
#include "dtrain/data/tokens/token_file.h"
#include "dtrain/model/family.h"
#include "dtrain/train/model_file.h"

namespace dtrain::commands {
namespace {

using checkpoint::to_tensor;
using checkpoint::format::Dtype;
using checkpoint::format::SafetensorsFile;
using checkpoint::format::TensorView;
using Shape = std::vector<std::int64_t>;

// The tensors whose name begins with `prefix`, which is removed.
std::map<std::string, at::Tensor> with_prefix(const SafetensorsFile& file,
                                              std::string_view prefix) {
  std::map<std::string, at::Tensor> found;
  for (const auto& view : file.tensors()) {
    if (!view.name.starts_with(prefix)) continue;
    found.emplace(view.name.substr(prefix.size()), to_tensor(view));
  }
  return found;
}

std::int64_t count_layers(const SafetensorsFile& file) {
  std::int64_t layers = 0;
  while (file.find("act.layer" + std::to_string(layers) + ".out") != nullptr) ++layers;
  if (layers == 0) {
    base::fail(base::ErrorKind::checkpoint,
               "{}: no tensor 'act.layer0.out', so the number of layers is unknown", file.path());
  }
  return layers;
}

[[noreturn]] void refuse_tensor(const SafetensorsFile& file, const TensorView& found,
                                std::string_view expected) {
  base::fail(
      base::ErrorKind::checkpoint,
      "{}: '{}' is {} ({}), but {} is expected; write the fixture as tests/golden/README.md says",
      file.path(), found.name, name_of(found.dtype), fmt::join(found.shape, ", "), expected);
}

config::ModelConfig model_of_fixture(const SafetensorsFile& file) {
  config::ModelConfig model = train::recognised_model(
      train::tensor_shapes(file.path(), file.tensors(), "weight.", /*is_storage=*/false),
      {.layers = count_layers(file)});
  model.dropout = 0;
  return model;
}

// The shapes of a fixture's required and optional floating-point tensors, by name.
struct Shapes {
  std::map<std::string, Shape> required;
  std::map<std::string, Shape> optional;
};

Shapes shapes_of(const config::ModelConfig& config, const Shape& batch) {
  Shapes shapes;
  const auto model = model::make_model(config, batch[1]);
  for (const param::ParameterSpec& spec : model->parameters) {
    shapes.required["weight." + spec.name] = shapes.required["grad." + spec.name] =
        spec.export_shape();
  }
  for (const model::ExportedBuffer& buffer : model->buffers) {
    shapes.required["weight." + buffer.name] = buffer.value.sizes().vec();
  }
  shapes.required["logits"] = {batch[0], batch[1], config.vocab};
  shapes.required["loss"] = {1};
  for (const model::ReportedValue& value :
       model::family_of(config).reported_values(config, batch[0], batch[1])) {
    (value.is_required ? shapes.required : shapes.optional)[value.name] = value.shape;
  }
  return shapes;
}

void check_shape(const SafetensorsFile& file, const TensorView& view, const Shape& expected) {
  const bool is_float = view.dtype == Dtype::f32 || view.dtype == Dtype::f64;
  if (is_float && view.shape == expected) return;
  refuse_tensor(file, view, fmt::format("F32 or F64 ({})", fmt::join(expected, ", ")));
}

void check_tensors(const SafetensorsFile& file, const Shapes& shapes) {
  for (const auto& [name, shape] : shapes.required) check_shape(file, file.at(name), shape);
  for (const TensorView& view : file.tensors()) {
    if (view.name == "inputs" || view.name == "targets" || shapes.required.contains(view.name)) {
      continue;
    }
    const auto optional = shapes.optional.find(view.name);
    if (optional == shapes.optional.end()) {
      base::fail(base::ErrorKind::checkpoint,
                 "{}: tensor '{}' does not belong in a fixture of this model, so it would not be "
                 "compared; remove it",
                 file.path(), view.name);
    }
    check_shape(file, view, optional->second);
  }
}

void check_tokens(const SafetensorsFile& file, const TensorView& view, std::int64_t vocab) {
  const at::Tensor tokens = to_tensor(view);  // (B, T)
  const auto* begin = tokens.const_data_ptr<std::int64_t>();
  const auto* end = begin + tokens.numel();
  const auto* stray =
      std::find_if(begin, end, [&](std::int64_t token) { return token < 0 || token >= vocab; });
  if (stray == end) return;
  base::fail(base::ErrorKind::checkpoint,
             "{}: '{}' holds token {} at row {}, position {}, but 0 to {} is expected; the "
             "vocabulary is the rows of 'weight.embed.weight'",
             file.path(), view.name, *stray, (stray - begin) / tokens.size(1),
             (stray - begin) % tokens.size(1), vocab - 1);
}

void check_batch(const SafetensorsFile& file, std::int64_t vocab) {
  const TensorView& inputs = file.at("inputs");
  const TensorView& targets = file.at("targets");
  if (inputs.dtype != Dtype::i64 || inputs.shape.size() != 2 || inputs.shape[0] == 0 ||
      inputs.shape[1] == 0) {
    refuse_tensor(file, inputs, "I64 (rows, positions)");
  }
  if (targets.dtype != Dtype::i64 || targets.shape != inputs.shape) {
    refuse_tensor(file, targets,
                  fmt::format("I64 ({}), as 'inputs',", fmt::join(inputs.shape, ", ")));
  }
  check_tokens(file, inputs, vocab);
  check_tokens(file, targets, vocab);
}

std::map<std::string, double> noise_of(const nlohmann::json& entry) {
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

// The reference's own differences between float32, float64 and thread counts, from the meta.json
// beside the fixture.
std::map<std::string, double> read_noise(const std::string& path) {
  const std::filesystem::path fixture(path);
  const std::filesystem::path beside = fixture.parent_path() / "meta.json";
  if (std::error_code error; !std::filesystem::is_regular_file(beside, error)) return {};
  std::ifstream file(beside);
  try {
    const auto cases = nlohmann::json::parse(file).value("cases", nlohmann::json::object());
    const auto entry = cases.find(fixture.stem().string());
    return entry == cases.end() ? std::map<std::string, double>{} : noise_of(*entry);
  } catch (const nlohmann::json::exception& error) {
    base::fail(
        base::ErrorKind::checkpoint,
        "{}: cannot be read as the rounding-noise file of {} ({}); remove it or generate it again",
        beside.string(), path, error.what());
  }
}

// Throws as rows_at.
void check_rows(const data::TokenFile& text, const std::vector<std::int64_t>& offsets,
                std::int64_t length, const std::string& path) {
  if (offsets.empty() || length < 1) {
    base::fail(base::ErrorKind::data,
               "{}: has a batch of {} sequences of {} tokens, but at least 1 is expected of each; "
               "check --trajectory",
               path, offsets.size(), length);
  }
  for (const std::int64_t offset : offsets) {
    if (offset >= 0 && offset < text.size() - length) continue;
    base::fail(base::ErrorKind::data,
               "{}: its sequence of {} tokens at offset {}, with the token after it, is not within "
               "the {} tokens of '{}'; give the text of this trajectory",
               path, length, offset, text.size(), text.path());
  }
}

Trajectory parse_trajectory(const nlohmann::json& json, const std::string& path,
                            const std::string& name) {
  const auto& run = json.at("runs").at(name);
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  const auto text =
      data::TokenFile::open((folder / json.at("text").get<std::string>()).string(), 256);
  Trajectory trajectory;
  trajectory.train = adamw_of(json);
  trajectory.train.grad_clip = json.at("clip").is_null() ? 0.0 : json.at("clip").get<double>();
  trajectory.train.steps = json.at("steps").get<std::int64_t>();
  for (const auto& offsets : json.at("offsets")) {
    trajectory.steps.push_back(rows_at(text, offsets.get<std::vector<std::int64_t>>(),
                                       json.at("T").get<std::int64_t>(), path));
  }
  trajectory.loss = run.at("loss").get<std::vector<double>>();
  trajectory.loss_fp64 = run.at("loss_fp64").get<std::vector<double>>();
  trajectory.grad_norm_fp64 = run.at("grad_norm_fp64").get<std::vector<double>>();
  for (const auto* values : {&trajectory.loss, &trajectory.loss_fp64, &trajectory.grad_norm_fp64}) {
    if (values->size() >= trajectory.steps.size()) continue;
    base::fail(
        base::ErrorKind::data,
        "{}: run '{}' has {} losses or norms, but offsets for {} steps; give one value per step",
        path, name, values->size(), trajectory.steps.size());
  }
  for (const auto& [parameter, values] : run.at("final_param_l2_and_sum_fp64").items()) {
    trajectory.final_l2_fp64[parameter] = values.at(0).get<double>();
  }
  const auto& final_eval = run.at("final_eval");
  trajectory.final_batch = rows_at(text, final_eval.at("offsets").get<std::vector<std::int64_t>>(),
                                   final_eval.at("T").get<std::int64_t>(), path);
  trajectory.final_loss = final_eval.at("loss").get<double>();
  for (const auto& [what, difference] : run.at("max_abs_loss_diff_vs_fp32").items()) {
    trajectory.noise = std::max(trajectory.noise, difference.get<double>());
  }
  return trajectory;
}

}  // namespace

config::TrainConfig adamw_of(const nlohmann::json& json) {
  config::TrainConfig train;
  train.lr = json.at("lr").get<double>();
  train.weight_decay = json.at("weight_decay").get<double>();
  train.beta1 = json.at("betas").at(0).get<double>();
  train.beta2 = json.at("betas").at(1).get<double>();
  train.eps = json.at("eps").get<double>();
  return train;
}

TokenRows rows_at(const data::TokenFile& text, const std::vector<std::int64_t>& offsets,
                  std::int64_t length, const std::string& path) {
  check_rows(text, offsets, length, path);
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

Fixture read_fixture(const std::string& path) {
  const SafetensorsFile file = SafetensorsFile::open(path);
  const config::ModelConfig model = model_of_fixture(file);
  check_batch(file, model.vocab);
  check_tensors(file, shapes_of(model, file.at("inputs").shape));
  Fixture fixture{.path = path,
                  .model = model,
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

Trajectory read_json(const std::string& path, const std::string& name,
                     const std::function<Trajectory(const nlohmann::json&)>& parse) {
  std::ifstream file(path);
  if (!file) base::fail(base::ErrorKind::data, "{}: cannot be read; check --trajectory", path);
  try {
    return parse(nlohmann::json::parse(file));
  } catch (const nlohmann::json::exception& error) {
    base::fail(base::ErrorKind::data, "{}: no usable trajectory '{}' ({}); check --name", path,
               name, error.what());
  }
}

Trajectory read_trajectory(const std::string& path, const std::string& name) {
  return read_json(path, name,
                   [&](const nlohmann::json& json) { return parse_trajectory(json, path, name); });
}

}  // namespace dtrain::commands
