#include "dtrain/commands/internal/hugging_face_fixture.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "dtrain/base/error.h"
#include "dtrain/checkpoint/format/weight_file.h"
#include "dtrain/checkpoint/store/names.h"
#include "dtrain/checkpoint/tensor_file.h"
#include "dtrain/config/hugging_face/config_file.h"
#include "dtrain/data/tokens/token_file.h"
#include "dtrain/model/family.h"

namespace dtrain::commands {
namespace {

using checkpoint::format::TensorView;
using checkpoint::format::WeightFile;

// Returns the file's tensor in the given shape.
at::Tensor tensor_in(const WeightFile& file, const std::string& name,
                     const std::vector<std::int64_t>& shape) {
  const TensorView* found = file.find(name);
  if (found == nullptr) {
    base::fail(base::ErrorKind::checkpoint, "{}: lacks tensor '{}'; give the model's own file",
               file.path(), name);
  }
  if (found->shape != shape) {
    base::fail(base::ErrorKind::checkpoint,
               "{}: tensor '{}' has shape ({}), but the model needs ({}); give its own file",
               file.path(), name, fmt::join(found->shape, ", "), fmt::join(shape, ", "));
  }
  return checkpoint::to_tensor(*found);
}

WeightFile weights_in(const std::string& folder) {
  const std::string file = checkpoint::store::model_file_in(folder);
  if (file.empty()) checkpoint::store::refuse_missing_weights(folder);
  return WeightFile::open(file);
}

void check_greedy_tokens(const GreedyTokens& greedy, const config::VerifyConfig& verify,
                         std::int64_t vocab) {
  const auto is_outside = [&](std::int64_t token) { return token < 0 || token >= vocab; };
  const auto stray = std::ranges::find_if(greedy.all, is_outside);
  if (stray == greedy.all.end()) return;
  base::fail(base::ErrorKind::data,
             "{}: greedy_after_training of model '{}' holds token {} at position {}, but the "
             "vocabulary of {} is 0 to {}; check --trajectory and --name",
             verify.trajectory, verify.name, *stray, stray - greedy.all.begin(),
             verify.hugging_face, vocab - 1);
}

Trajectory parse(const nlohmann::json& json, const config::VerifyConfig& verify,
                 const config::ModelConfig& model) {
  const auto& run = json.at("models").at(verify.name);
  const auto length = json.at("length").get<std::int64_t>();
  const auto text = data::TokenFile::open(verify.text, model.vocab);
  Trajectory trajectory;
  trajectory.clips_as_pytorch = true;
  for (const auto& offsets : run.at("offsets")) {
    trajectory.steps.push_back(
        rows_at(text, offsets.get<std::vector<std::int64_t>>(), length, verify.trajectory));
  }
  if (trajectory.steps.empty()) {
    base::fail(base::ErrorKind::data, "{}: model '{}' has no steps; check --trajectory",
               verify.trajectory, verify.name);
  }
  trajectory.train = adamw_of(json.at("optimizer"));
  trajectory.train.grad_clip = json.at("optimizer").at("grad_clip").get<double>();
  trajectory.train.steps = static_cast<std::int64_t>(trajectory.steps.size());
  trajectory.loss = run.at("fp32").at("losses").get<std::vector<double>>();
  trajectory.loss_fp64 = run.at("fp64").at("losses").get<std::vector<double>>();
  trajectory.grad_norm_fp64 = run.at("fp64").at("grad_norms").get<std::vector<double>>();
  trajectory.greedy =
      GreedyTokens{.prompt = run.at("greedy_prompt").get<std::vector<std::int64_t>>(),
                   .all = run.at("greedy_after_training").get<std::vector<std::int64_t>>()};
  check_greedy_tokens(*trajectory.greedy, verify, model.vocab);
  for (const auto* values : {&trajectory.loss, &trajectory.loss_fp64, &trajectory.grad_norm_fp64}) {
    if (values->size() == trajectory.steps.size()) continue;
    base::fail(base::ErrorKind::data,
               "{}: model '{}' has {} losses or norms, but offsets for {} steps", verify.trajectory,
               verify.name, values->size(), trajectory.steps.size());
  }
  return trajectory;
}

config::ModelConfig model_in(const std::string& folder) {
  std::optional<config::ModelConfig> model = config::hugging_face_model_in(folder);
  if (!model) {
    base::fail(base::ErrorKind::checkpoint,
               "--huggingface {}: has no config.json of Hugging Face; give a model's folder",
               folder);
  }
  model->dropout = 0;
  return *std::move(model);
}

}  // namespace

HuggingFaceFixture read_hugging_face_fixture(const config::VerifyConfig& verify) {
  HuggingFaceFixture read_in;
  Fixture& fixture = read_in.fixture;
  fixture.path = verify.hugging_face;
  fixture.model = model_in(verify.hugging_face);
  fixture.tolerance = HuggingFaceTolerance().float32;
  read_in.trajectory = read_json(verify.trajectory, verify.name, [&](const nlohmann::json& json) {
    return parse(json, verify, fixture.model);
  });
  fixture.batch = read_in.trajectory.steps.front();
  fixture.loss = read_in.trajectory.loss.front();
  const WeightFile weights = weights_in(verify.hugging_face);
  const auto expected = WeightFile::open(verify.expected);
  const std::vector<std::int64_t> batch = fixture.batch.inputs.sizes().vec();
  const auto model = model::make_model(fixture.model, batch[1]);
  for (const param::ParameterSpec& spec : model->parameters) {
    fixture.weights.emplace(spec.name, tensor_in(weights, spec.name, spec.export_shape()));
    fixture.gradients.emplace(spec.name,
                              tensor_in(expected, "grad." + spec.name, spec.export_shape()));
  }
  fixture.logits = tensor_in(expected, "logits", {batch[0], batch[1], fixture.model.vocab});
  return read_in;
}

}  // namespace dtrain::commands
