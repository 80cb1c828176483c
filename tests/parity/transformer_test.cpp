// Promise 1 for transformers: equal bits over the data axis, and float64 results that agree over the
// tensor and pipeline axes.
#include <ATen/ATen.h>
#include <fmt/format.h>

#include <catch2/catch.hpp>

#include "dtrain/config/gpt2/settings.h"
#include "dtrain/config/llama/settings.h"
#include "parity/saved_run.h"
#include "support/engine_run.h"
#include "support/oracles/rounding.h"
#include "support/oracles/sensitivity.h"
#include "support/settings.h"
#include "support/temp_folder.h"

namespace dtrain::testing::transformer_test {
namespace {

// Six heads of queries for two of keys; four layers for four stages; an MLP and a vocabulary of sizes
// that neither two, three nor six ranks divide.
config::Config llama_config(bool ties_embeddings, double dropout = 0.1) {
  using config::llama::AttentionBias;
  config::Config config = tiny_config();
  config.model = {
      .name = "llama",
      .layers = 4,
      .width = 24,
      .heads = 6,
      .family = config::llama::Settings{.kv_heads = 2,
                                        .head_dim = 8,
                                        .intermediate = 37,
                                        .attention_bias = ties_embeddings ? AttentionBias::all
                                                                          : AttentionBias::qkv,
                                        .query_key_norm = ties_embeddings,
                                        .tie_embeddings = ties_embeddings},
      .vocab = 257,
      .dropout = dropout};
  return laid_out(config, 1, 1);
}

config::Config gpt2_config(bool is_whole_gpt2, double dropout = 0.1) {
  config::Config config = tiny_config();
  config.model = {.name = "gpt2",
                  .layers = 4,
                  .width = 24,
                  .heads = 6,
                  .family = config::gpt2::Settings{.inner = 37,
                                                   .positions = 2 * config.data.seq_len,
                                                   .biases = is_whole_gpt2,
                                                   .tie_head = is_whole_gpt2},
                  .vocab = 257,
                  .dropout = dropout};
  return laid_out(config, 1, 1);
}

// Both families, with and without biases and tied embeddings.
config::Config config_of(const std::string& family, bool ties) {
  return family == "gpt2" ? gpt2_config(ties) : llama_config(ties);
}

std::string text_of_all(const config::Config& config) {
  const std::vector<Trace> traces = train_on_threads(config);
  for (const Trace& trace : traces) REQUIRE(trace.text() == traces.front().text());
  return traces.front().text();
}

TEST_CASE("A transformer has the bits of one rank on every data axis") {
  const std::string family = GENERATE("llama", "gpt2");
  const bool ties = GENERATE(false, true);
  const std::string dtype = GENERATE("float32", "bfloat16", "float16");
  config::Config config = config_of(family, ties);
  set(config, "machine.dtype", dtype);
  CAPTURE(family, ties, dtype);
  const std::string single = text_of_all(laid_out(config, 1, 4));
  CHECK(text_of_all(laid_out(config, 4, 1)) == single);
  for (const char* what : {"fsdp:full", "fsdp:grad-op", "zero:1", "zero:2", "hybrid:2"}) {
    CAPTURE(what);
    CHECK(text_of_all(sharded(config, 4, 1, what)) == single);
  }
}

TEST_CASE("A transformer on a mesh trains what one rank trains") {
  const std::string family = GENERATE("llama", "gpt2");
  const bool ties = GENERATE(false, true);
  config::Config config = config_of(family, ties);
  set(config, "machine.dtype", "float64");
  const Trace single = train_on_threads(laid_out(config, 1, 1)).front();
  const TraceBound bound = rounding_bound_of(laid_out(config, 1, 1), at::kDouble);
  // Two ranks split a Llama's heads of keys; three and six share them.
  for (const mesh::MeshShape& mesh :
       {mesh::MeshShape{{Axis::tp, 2}}, mesh::MeshShape{{Axis::tp, 3}},
        mesh::MeshShape{{Axis::tp, 6}}, mesh::MeshShape{{Axis::pp, 2}},
        mesh::MeshShape{{Axis::pp, 4}},
        mesh::MeshShape{{Axis::pp, 2}, {Axis::dp, 2}, {Axis::tp, 3}}}) {
    for (const bool splits_vocab : {false, true}) {
      if (splits_vocab && mesh[Axis::tp] != 2 && mesh[Axis::tp] != 3) continue;
      INFO(family << " tp " << mesh[Axis::tp] << " pp " << mesh[Axis::pp] << " tied " << ties);
      config::Config config_here = config;
      config_here.layout.tp_vocab = splits_vocab;
      // Computes the dropout and the calls of a layer twice.
      if (mesh[Axis::dp] > 1) set(config_here, "machine.recompute", "level");
      const std::vector<Trace> traces = train_on_threads(meshed(config_here, mesh, 1));
      for (const Trace& trace : traces) CHECK(trace.text() == traces.front().text());
      check_near(traces.front(), single, bound);
      for (const auto& [name, value] : single.state) {
        INFO(name);
        CHECK(largest_error(traces.front().state.at(name), value) < 1e-9);
      }
    }
  }
}

// In float16 the first steps overflow and are skipped; at least half of the eight update the weights.
TEST_CASE("A transformer on a mesh trains in 16 bits what one rank trains, to their precision") {
  const std::string family = GENERATE("llama", "gpt2");
  const std::string dtype = GENERATE("bfloat16", "float16");
  config::Config config = config_of(family, /*ties=*/true);
  config.train.steps = 8;
  const TraceBound bound = rounding_bound_of(config, scalar_type_of(dtype));
  set(config, "machine.dtype", dtype);
  config::Config before = config;
  before.train.steps = 0;
  const Trace initial = train_on_threads(before).front();
  const Trace expected = train_on_threads(config).front();
  CHECK(expected.state.at("optimizer.num_updates").item<double>() >= (dtype == "float16" ? 4 : 8));
  CHECK(expected.losses.back() < expected.losses.front());
  config.layout.tp_vocab = true;
  for (const mesh::MeshShape& mesh :
       {mesh::MeshShape{{Axis::tp, 3}}, mesh::MeshShape{{Axis::pp, 2}, {Axis::tp, 2}}}) {
    INFO(family << " " << dtype << " tp " << mesh[Axis::tp] << " pp " << mesh[Axis::pp]);
    const Trace found = train_on_threads(meshed(config, mesh, 1)).front();
    check_updates_near(found, expected, initial, bound);
  }
}

TEST_CASE("A transformer with uneven slices resumes at other layouts") {
  const std::string family = GENERATE("llama", "gpt2");
  CAPTURE(family);
  config::Config config = config_of(family, /*ties=*/true);
  set(config, "machine.dtype", "float64");
  config::Config splitting = config;
  splitting.layout.tp_vocab = true;
  const std::vector<config::Config> layouts{
      laid_out(config, 1, 2), meshed(splitting, {{Axis::tp, 3}}, 2),
      meshed(splitting, {{Axis::pp, 2}, {Axis::tp, 2}}, 2), sharded(config, 4, 1, "fsdp:full")};
  const Trace single = train_on_threads(layouts.front()).front();
  const TraceBound bound = rounding_bound_of(laid_out(config, 1, 1), at::kDouble);
  for (std::size_t saving = 0; saving < layouts.size(); ++saving) {
    const std::size_t loading = (saving + 1) % layouts.size();
    INFO("saved by layout " << saving << ", loaded by " << loading);
    const TempFolder folder;
    train_and_save(layouts[saving], 2, folder.path("c"), /*staged=*/true);
    const std::vector<Trace> traces = load_and_train(layouts[loading], folder.path("c"));
    for (const auto& [name, value] : single.state) {
      INFO(name);
      CHECK(largest_error(traces.front().state.at(name), value) <= 2 * bound.state.at(name));
    }
  }
}

TEST_CASE("Parameters that --no-decay selects train differently") {
  const auto [family, layer] = GENERATE(table<std::string, std::string>(
      {{"llama", "model.layers.0.*"}, {"gpt2", "transformer.h.0.*"}}));
  config::Config config = family == "gpt2" ? gpt2_config(true, 0) : llama_config(true, 0);
  config.train.steps = 2;  // biases are 0 before the first
  config.train.lr = 0.1;
  config.train.weight_decay = 1;
  const std::string all = text_of_all(config);
  for (const std::string& item :
       {std::string("norms"), std::string("biases"), std::string("embeddings"), layer}) {
    config.train.no_decay = {item};
    INFO(item);
    CHECK(text_of_all(config) != all);
  }
}

}  // namespace
}  // namespace dtrain::testing::transformer_test
