#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "dtrain/config/gpt2/settings.h"
#include "support/hugging_face_config.h"
#include "support/messages.h"

namespace dtrain::config::hugging_face_test {
namespace {

using base::ErrorKind;
using testing::message_of;
using testing::Names;

// The least that a config.json must hold.
Json minimal_gpt2() {
  return {
      {"model_type", "gpt2"}, {"vocab_size", 1000}, {"n_embd", 192}, {"n_layer", 3}, {"n_head", 8}};
}

TEST_CASE("Every size and switch of a GPT-2's config.json becomes a setting, or its default") {
  const ModelConfig plain = read(minimal_gpt2());
  CHECK(plain.name == "gpt2");
  CHECK(plain.layers == 3);
  CHECK(plain.width == 192);
  CHECK(plain.heads == 8);
  CHECK(plain.vocab == 1000);
  CHECK(plain.dropout == 0);
  CHECK(gpt2::inner_size_of(plain) == 768);
  const gpt2::Settings& defaults = gpt2::settings_of(plain);
  CHECK(defaults.positions == 1024);
  CHECK(defaults.norm_epsilon == 1e-5);
  CHECK(defaults.init_stddev == 0.02);
  CHECK(defaults.biases);
  CHECK(defaults.tie_head);
  const ModelConfig model = read(with(minimal_gpt2(), {{"n_inner", 100},
                                                       {"n_positions", 64},
                                                       {"n_ctx", 32},
                                                       {"layer_norm_epsilon", 1e-6},
                                                       {"initializer_range", 0.01},
                                                       {"tie_word_embeddings", false},
                                                       {"activation_function", "gelu_new"},
                                                       {"resid_pdrop", 0.1},
                                                       {"summary_type", "cls_index"},
                                                       {"_num_labels", 1},
                                                       {"output_past", true},
                                                       {"xla_device", true}}));
  CHECK(gpt2::inner_size_of(model) == 100);
  const gpt2::Settings& own = gpt2::settings_of(model);
  CHECK(own.positions == 64);
  CHECK(own.norm_epsilon == 1e-6);
  CHECK(own.init_stddev == 0.01);
  CHECK_FALSE(own.tie_head);
  const ModelConfig zeros = read(with(minimal_gpt2(), {{"initializer_range", 0}}));
  CHECK(gpt2::settings_of(zeros).init_stddev == 0);
  for (const ModelConfig& each : {plain, model, zeros}) {
    CHECK(text_of(read(written(each))) == text_of(each));
  }
}

TEST_CASE("Arithmetic of GPT-2 models that dtrain lacks is refused by key and value") {
  const auto check = [](const Json& keys, const Names& names) {
    INFO(keys.dump());
    CHECK_THAT(refusal(with(minimal_gpt2(), keys)), names);
  };
  check({{"activation_function", "gelu"}}, Names("activation_function", "gelu"));
  check({{"scale_attn_weights", false}}, Names("scale_attn_weights"));
  check({{"scale_attn_by_inverse_layer_idx", true}}, Names("scale_attn_by_inverse_layer_idx"));
  check({{"add_cross_attention", true}}, Names("add_cross_attention"));
  check({{"rope_theta", 10000}}, Names("rope_theta"));
  check({{"n_head", nullptr}}, Names("n_head"));
  check({{"n_head", 7}}, Names("--heads", 7, "--width", 192));
}

TEST_CASE("A GPT-2 without biases is not exported") {
  ModelConfig model = read(minimal_gpt2());
  gpt2::settings_of(model).biases = false;
  CHECK_THAT(message_of(ErrorKind::usage, [&] { (void)written(model); }), Names("--biases"));
}

}  // namespace
}  // namespace dtrain::config::hugging_face_test
