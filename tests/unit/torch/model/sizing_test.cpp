// Compares the counts that --match uses, which need no LibTorch, with those of the models.
#include <catch2/catch.hpp>

#include "dtrain/config/bdh/settings.h"
#include "dtrain/config/llama/settings.h"
#include "dtrain/config/match.h"
#include "dtrain/config/resolve/resolve.h"
#include "dtrain/model/family.h"
#include "support/settings.h"

namespace dtrain::model::sizing_test {
namespace {

using config::Config;
using config::MatchBy;

void check_counts(Config config) {
  (void)config::resolve_computation(config, {});
  config::resolve_attention(config);
  const auto model =
      make_model(config.model, config.data.seq_len, {},
                 {.kernels = config.machine.kernels, .attention = config.machine.attention});
  CHECK(config::count_of(MatchBy::parameters, config) ==
        static_cast<double>(model->num_elements()));
  CHECK(config::count_of(MatchBy::flops, config) == Approx(model->training_flops_per_token()));
}

TEST_CASE("A BDH's parameters and FLOPs are those of the model") {
  for (const char* tie_layers : {"on", "off"}) {
    for (const char* attention : {"auto", "full", "chunked:32"}) {
      for (const std::int64_t seq_len : {16, 700}) {
        Config config;
        config.model = {.layers = 3,
                        .width = 24,
                        .heads = 2,
                        .family = config::bdh::Settings{.neurons = 10},
                        .vocab = 77};
        config.data.seq_len = seq_len;
        set(config, "model.tie_layers", tie_layers);
        set(config, "machine.attention", attention);
        check_counts(config);
      }
    }
  }
}

TEST_CASE("A Llama's parameters and FLOPs are those of the model") {
  for (const char* bias : {"none", "qkv", "all"}) {
    for (const char* is_on : {"on", "off"}) {
      for (const char* head_dim : {"0", "10"}) {
        Config config;
        config.model = {.name = "llama", .layers = 3, .width = 24, .heads = 4, .vocab = 77};
        config.data.seq_len = 50;
        set(config, "model.kv_heads", "2");
        set(config, "model.intermediate_size", "36");
        set(config, "model.attention_bias", bias);
        set(config, "model.head_dim", head_dim);
        set(config, "model.qk_norm", is_on);
        set(config, "model.tie_embeddings", is_on);
        check_counts(config);
        set(config, "model.intermediate_size", "0");
        set(config, "model.kv_heads", "0");
        check_counts(config);
      }
    }
  }
}

TEST_CASE("A GPT-2's parameters and FLOPs are those of the model") {
  for (const char* biases : {"on", "off"}) {
    for (const char* tie_head : {"on", "off"}) {
      for (const char* inner : {"0", "33"}) {
        Config config;
        config.model = {.name = "gpt2", .layers = 3, .width = 24, .heads = 4, .vocab = 77};
        config.data.seq_len = 50;
        set(config, "model.biases", biases);
        set(config, "model.tie_head", tie_head);
        set(config, "model.inner_size", inner);
        set(config, "model.learned_positions", "60");
        check_counts(config);
      }
    }
  }
}

}  // namespace
}  // namespace dtrain::model::sizing_test
