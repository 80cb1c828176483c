// Compares Llama models with what transformers computed (tests/hf/README.md), and their parts with
// each other.
#include "dtrain/model/llama/llama.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include <catch2/catch.hpp>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "dtrain/base/error.h"
#include "dtrain/checkpoint/format/weight_file.h"
#include "dtrain/checkpoint/tensor_file.h"
#include "dtrain/model/family.h"
#include "dtrain/model/llama/internal/llama_generator.h"
#include "dtrain/param/arena.h"
#include "support/oracles/rounding.h"
#include "support/values.h"

namespace dtrain::model::llama::llama_test {
namespace {

using testing::largest_error;

const std::string kFixtures = std::string(DTRAIN_SOURCE_DIR) + "/tests/hf/";

struct Named {
  std::string name;
  LlamaSizes sizes;
};

// The sizes in the folders' config.json.
std::vector<Named> fixtures() {
  const config::llama::RopeSettings llama3{.theta = 500000,
                                           .scaling = config::llama::RopeScaling::llama3,
                                           .factor = 8,
                                           .low_frequency = 1,
                                           .high_frequency = 4,
                                           .original = 32};
  return {{"llama",
           {.layers = 2,
            .width = 48,
            .heads = 6,
            .kv_heads = 2,
            .head_dim = 8,
            .intermediate = 112,
            .vocab = 256,
            .norm_epsilon = 1e-5}},
          {"llama3_tied",
           {.layers = 3,
            .width = 32,
            .heads = 4,
            .kv_heads = 1,
            .head_dim = 8,
            .intermediate = 80,
            .vocab = 256,
            .norm_epsilon = 1e-6,
            .rope = llama3,
            .ties_embeddings = true}},
          {"qwen2",
           {.layers = 2,
            .width = 48,
            .heads = 4,
            .kv_heads = 2,
            .head_dim = 12,
            .intermediate = 96,
            .vocab = 256,
            .norm_epsilon = 1e-6,
            .rope = {.theta = 1e6},
            .biases_qkv = true,
            .ties_embeddings = true}},
          {"qwen3",
           {.layers = 2,
            .width = 48,
            .heads = 4,
            .kv_heads = 2,
            .head_dim = 24,
            .intermediate = 96,
            .vocab = 256,
            .norm_epsilon = 1e-6,
            .rope = {.theta = 1e6},
            .norms_heads = true}}};
}

nlohmann::json meta() {
  std::ifstream file(kFixtures + "meta.json");
  return nlohmann::json::parse(file);
}

std::string text() {
  std::ifstream file(std::string(DTRAIN_SOURCE_DIR) + "/tests/golden/text.bin", std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// (rows, length + 1) tokens from each offset on.
at::Tensor windows(const std::vector<std::int64_t>& offsets, std::int64_t length) {
  const std::string all = text();
  const at::Tensor rows =
      at::empty({static_cast<std::int64_t>(offsets.size()), length + 1}, at::kLong);
  for (std::size_t row = 0; row < offsets.size(); ++row) {
    for (std::int64_t i = 0; i <= length; ++i) {
      rows[static_cast<std::int64_t>(row)][i] =
          static_cast<std::uint8_t>(all[static_cast<std::size_t>(offsets[row] + i)]);
    }
  }
  return rows;
}

std::map<std::string, at::Tensor> tensors_of(const std::string& path) {
  std::map<std::string, at::Tensor> tensors;
  const auto file = checkpoint::format::WeightFile::open(path);
  for (const auto& view : file.tensors()) tensors.emplace(view.name, checkpoint::to_tensor(view));
  return tensors;
}

// All tensors of a folder, by their names without a prefix that the files share.
std::map<std::string, at::Tensor> weights_of(const std::string& folder) {
  std::map<std::string, at::Tensor> all;
  for (const auto& file : std::filesystem::directory_iterator(folder)) {
    if (file.path().extension() != ".safetensors") continue;
    for (auto& [name, value] : tensors_of(file.path().string())) all.emplace(name, value);
  }
  return all;
}

struct Computed {
  at::Tensor logits;
  at::Tensor loss;
  std::map<std::string, at::Tensor> gradients;
};

param::Arena loaded(const Model& model, const std::map<std::string, at::Tensor>& weights,
                    at::ScalarType dtype) {
  param::Arena arena(param::ArenaLayout(model.parameters), dtype, param::private_memory);
  for (const param::ParameterId id : model.parameters.ids()) {
    std::string name = model.parameters[id].name;
    if (!weights.contains(name)) name = name.substr(name.find('.') + 1);
    arena.view(id).copy_(weights.at(name));
  }
  return arena;
}

Computed compute(const Model& model, const param::Arena& weights, const at::Tensor& tokens) {
  param::ParameterViews leaves;
  for (const param::ParameterId id : model.parameters.ids()) {
    at::Tensor leaf = weights.view(id).detach().clone();
    leaves.push_back(leaf.set_requires_grad(true));
  }
  Computed result;
  const ParameterReader read = [&](param::ParameterId id) { return leaves[id]; };
  const Tap tap = [&](std::string_view name, const at::Tensor& value) {
    if (name == "logits") result.logits = value.detach().clone();
  };
  TensorAxis axis;
  const std::int64_t length = tokens.size(1) - 1;
  const BlockContext context{.first_sample = at::zeros({}, at::kLong),
                             .training = true,
                             .targets = tokens.narrow(1, 1, length),
                             .use = read,
                             .tensor_axis = axis,
                             .tap = tap};
  at::Tensor x = tokens.narrow(1, 0, length);
  for (const auto& block : model.blocks) x = block->forward(x, context);
  result.loss = x.mean();
  torch::autograd::backward({result.loss}, {});
  for (const param::ParameterId id : model.parameters.ids()) {
    result.gradients.emplace(model.parameters[id].name, leaves[id].grad());
  }
  return result;
}

TEST_CASE("Logits, losses and gradients are those of transformers") {
  const nlohmann::json expected_of = meta().at("models");
  for (const Named& each : fixtures()) {
    INFO(each.name);
    const auto model = make_llama(each.sizes, 40);
    const auto weights = weights_of(kFixtures + each.name);
    const auto expected = tensors_of(kFixtures + each.name + ".expected.safetensors");
    const nlohmann::json& entry = expected_of.at(each.name);
    const at::Tensor tokens =
        windows(entry.at("offsets").at(0).get<std::vector<std::int64_t>>(), 40);

    const Computed single = compute(*model, loaded(*model, weights, at::kFloat), tokens);
    CHECK(largest_error(single.logits, expected.at("logits")) < 1e-5);
    for (const auto& [name, gradient] : single.gradients) {
      INFO(name);
      CHECK(largest_error(gradient, expected.at("grad." + name)) < 1e-5);
    }
    const Computed wide = compute(*model, loaded(*model, weights, at::kDouble), tokens);
    const double loss = entry.at("fp64").at("losses").at(0);
    CHECK(std::abs(wide.loss.item<double>() / loss - 1) < 1e-10);
  }
}

TEST_CASE("A generator with its cache gives the logits of the blocks") {
  for (const Named& each : fixtures()) {
    INFO(each.name);
    const auto model = make_llama(each.sizes, 90);
    const auto weights = weights_of(kFixtures + each.name);
    const param::Arena arena = loaded(*model, weights, at::kDouble);
    const at::Tensor tokens = windows({100}, 90);
    const Computed whole = compute(*model, arena, tokens);
    LlamaGenerator generator(each.sizes, 90, arena);
    for (std::int64_t t = 0; t < 90; ++t) {
      const at::Tensor& logits = generator.step(tokens[0][t].item<std::int64_t>());
      REQUIRE(largest_error(logits, whole.logits[0][t]) < 1e-12);
    }
    CHECK_THROWS_AS(generator.step(0), base::Error);
  }
}

TEST_CASE("A prompt in one pass gives the logits of the blocks and fills the cache") {
  constexpr std::int64_t kLength = 150;  // more than the generator computes at once
  for (const Named& each : fixtures()) {
    INFO(each.name);
    const auto model = make_llama(each.sizes, kLength);
    const param::Arena arena = loaded(*model, weights_of(kFixtures + each.name), at::kDouble);
    const at::Tensor tokens = windows({100}, kLength);
    const Computed whole = compute(*model, arena, tokens);
    const auto* ids = tokens.const_data_ptr<std::int64_t>();
    for (const std::int64_t prompt : {1, 2, 70, 128, 129, 145}) {
      INFO(prompt << " tokens");
      LlamaGenerator generator(each.sizes, kLength, arena);
      const at::Tensor first =
          generator.read_prompt({ids, static_cast<std::size_t>(prompt)}).clone();
      CHECK(largest_error(first, whole.logits[0][prompt - 1]) < 1e-12);
      for (std::int64_t t = prompt; t < kLength; ++t) {
        REQUIRE(largest_error(generator.step(ids[t]), whole.logits[0][t]) < 1e-12);
      }
      CHECK_THROWS_AS(generator.step(0), base::Error);
    }
    LlamaGenerator small(each.sizes, 40, arena);
    CHECK_THROWS_AS(small.read_prompt({ids, 41}), base::Error);
  }
}

TEST_CASE("The predicted memory of the cache is that of the room it makes") {
  CHECK(KeyValueCache::capacity_for(1, 4096) == 64);
  CHECK(KeyValueCache::capacity_for(64, 4096) == 64);
  CHECK(KeyValueCache::capacity_for(65, 4096) == 128);
  CHECK(KeyValueCache::capacity_for(4000, 4096) == 4096);
  CHECK(KeyValueCache::capacity_for(90, 100) == 100);
}

}  // namespace
}  // namespace dtrain::model::llama::llama_test
