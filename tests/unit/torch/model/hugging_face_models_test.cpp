// Compares models in Hugging Face's format with what transformers computed (tests/hf/README.md), and
// their parts with each other.
#include <ATen/ATen.h>

#include <catch2/catch.hpp>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "dtrain/base/error.h"
#include "dtrain/checkpoint/format/weight_file.h"
#include "dtrain/checkpoint/tensor_file.h"
#include "dtrain/config/hugging_face/config_file.h"
#include "dtrain/model/family.h"
#include "dtrain/model/transformer/key_value_cache.h"
#include "dtrain/param/arena.h"
#include "support/block_results.h"
#include "support/values.h"

namespace dtrain::model::hugging_face_models_test {
namespace {

using testing::BlockResults;
using testing::largest_error;
using testing::run_blocks;

const std::string kFixtures = std::string(DTRAIN_SOURCE_DIR) + "/tests/hf/";

const std::vector<std::string> kNames{"llama", "llama3_tied", "qwen2", "qwen3", "gpt2"};

config::ModelConfig config_of(const std::string& name) {
  return config::hugging_face_model_in(kFixtures + name).value();
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

param::Arena loaded(const Model& model, const std::map<std::string, at::Tensor>& weights,
                    at::ScalarType dtype) {
  param::Arena arena(param::ArenaLayout(model.parameters), dtype, param::private_memory);
  for (const param::ParameterId id : model.parameters.ids()) {
    std::string name = model.parameters[id].name;
    if (!weights.contains(name)) name = name.substr(name.find('.') + 1);
    param::store_exported(model.parameters[id], weights.at(name), arena.view(id));
  }
  return arena;
}

TEST_CASE("Logits, losses and gradients are those of transformers") {
  const nlohmann::json expected_of = meta().at("models");
  for (const std::string& name : kNames) {
    INFO(name);
    const auto weights = weights_of(kFixtures + name);
    const auto expected = tensors_of(kFixtures + name + ".expected.safetensors");
    const nlohmann::json& entry = expected_of.at(name);
    const at::Tensor tokens =
        windows(entry.at("offsets").at(0).get<std::vector<std::int64_t>>(), 40);
    for (const config::Kernels kernels : {config::Kernels::plain, config::Kernels::fused}) {
      INFO("fused: " << (kernels == config::Kernels::fused));
      const auto model = make_model(config_of(name), 40, {}, {.kernels = kernels});

      const BlockResults single = run_blocks(*model, loaded(*model, weights, at::kFloat), tokens);
      CHECK(largest_error(single.logits, expected.at("logits")) < 1e-5);
      for (const auto& [parameter, gradient] : single.gradients) {
        INFO(parameter);
        CHECK(largest_error(gradient, expected.at("grad." + parameter)) < 1e-5);
      }
      const BlockResults wide = run_blocks(*model, loaded(*model, weights, at::kDouble), tokens);
      const double loss = entry.at("fp64").at("losses").at(0);
      CHECK(std::abs(wide.loss.item<double>() / loss - 1) < 1e-10);
    }
  }
}

TEST_CASE("A generator with its cache gives the logits of the blocks") {
  for (const std::string& name : kNames) {
    INFO(name);
    const config::ModelConfig config = config_of(name);
    const Family& family = family_of(config);
    const std::int64_t length = family.max_positions(config);
    const auto model = make_model(config, length);
    const param::Arena arena = loaded(*model, weights_of(kFixtures + name), at::kDouble);
    const at::Tensor tokens = windows({100}, length);
    const BlockResults whole = run_blocks(*model, arena, tokens);
    const auto generator = family.make_generator(config, arena);
    for (std::int64_t t = 0; t < length; ++t) {
      const at::Tensor& logits = generator->step(tokens[0][t].item<std::int64_t>());
      REQUIRE(largest_error(logits, whole.logits[0][t]) < 1e-12);
    }
    CHECK_THROWS_AS(generator->step(0), base::Error);
  }
}

TEST_CASE("A prompt in one pass gives the logits of the blocks and fills the cache") {
  for (const std::string& name : kNames) {
    INFO(name);
    const config::ModelConfig config = config_of(name);
    const Family& family = family_of(config);
    const std::int64_t length = family.max_positions(config);
    const auto model = make_model(config, length);
    const param::Arena arena = loaded(*model, weights_of(kFixtures + name), at::kDouble);
    const at::Tensor tokens = windows({100}, length);
    const BlockResults whole = run_blocks(*model, arena, tokens);
    const auto* ids = tokens.const_data_ptr<std::int64_t>();
    // Fewer than the generator computes at once, as many, and more.
    for (const std::int64_t prompt : {1, 2, 70, 128, 129, 145}) {
      if (prompt > length) continue;
      INFO(prompt << " tokens");
      const auto generator = family.make_generator(config, arena);
      const at::Tensor first =
          generator->read_prompt({ids, static_cast<std::size_t>(prompt)}).clone();
      CHECK(largest_error(first, whole.logits[0][prompt - 1]) < 1e-12);
      for (std::int64_t t = prompt; t < length; ++t) {
        REQUIRE(largest_error(generator->step(ids[t]), whole.logits[0][t]) < 1e-12);
      }
      CHECK_THROWS_AS(generator->step(0), base::Error);
    }
    const std::vector<std::int64_t> longer(static_cast<std::size_t>(length + 1));
    CHECK_THROWS_AS(family.make_generator(config, arena)->read_prompt(longer), base::Error);
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
}  // namespace dtrain::model::hugging_face_models_test
