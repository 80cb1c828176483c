#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "dtrain/config/bdh/settings.h"
#include "dtrain/config/family.h"
#include "dtrain/config/hugging_face/config_file.h"
#include "dtrain/config/llama/settings.h"
#include "support/hugging_face_config.h"
#include "support/messages.h"
#include "support/settings.h"
#include "support/temp_folder.h"

namespace dtrain::config::hugging_face_test {
namespace {

using base::ErrorKind;
using llama::AttentionBias;
using llama::RopeScaling;
using llama::settings_of;
using testing::message_of;
using testing::Names;
using testing::TempFolder;

// The least that a config.json must hold.
Json minimal(const std::string& type = "llama") {
  return {{"model_type", type},     {"vocab_size", 1000},       {"hidden_size", 192},
          {"num_hidden_layers", 3}, {"num_attention_heads", 8}, {"intermediate_size", 320}};
}

TEST_CASE("Every size, epsilon, base and switch of a config.json becomes a setting") {
  const ModelConfig model = read(with(minimal(), {{"num_key_value_heads", 2},
                                                  {"head_dim", 32},
                                                  {"rms_norm_eps", 2e-5},
                                                  {"rope_theta", 50000},
                                                  {"tie_word_embeddings", true},
                                                  {"attention_bias", true},
                                                  {"initializer_range", 0.01},
                                                  {"max_position_embeddings", 512}}));
  CHECK(model.name == "llama");
  CHECK(model.layers == 3);
  CHECK(model.width == 192);
  CHECK(model.heads == 8);
  CHECK(model.vocab == 1000);
  CHECK(model.dropout == 0);
  const llama::Settings& own = settings_of(model);
  CHECK(own.kv_heads == 2);
  CHECK(own.head_dim == 32);
  CHECK(own.intermediate == 320);
  CHECK(own.norm_epsilon == 2e-5);
  CHECK(own.rope.theta == 50000);
  CHECK(own.rope.scaling == RopeScaling::none);
  CHECK(own.attention_bias == AttentionBias::all);
  CHECK_FALSE(own.query_key_norm);
  CHECK(own.tie_embeddings);
  CHECK(own.init_stddev == 0.01);
  CHECK(own.max_positions == 512);
}

TEST_CASE("Absent keys take transformers' defaults of the model type") {
  struct Case {
    std::string type;
    std::int64_t kv_heads;
    std::int64_t head_dim;
    std::int64_t max_positions;
    AttentionBias bias;
    bool norms_heads;
  };
  const Case expected =
      GENERATE(values<Case>({{"llama", 8, 24, 2048, AttentionBias::none, false},
                             {"mistral", 8, 24, 131072, AttentionBias::none, false},
                             {"qwen2", 32, 6, 32768, AttentionBias::qkv, false},
                             {"qwen3", 32, 128, 32768, AttentionBias::none, true}}));
  Json config = minimal(expected.type);
  if (expected.type == "mistral") config["sliding_window"] = nullptr;
  if (expected.kv_heads == 32) config["num_attention_heads"] = 32;  // a multiple of 32
  INFO(expected.type);
  const ModelConfig model = read(config);
  const llama::Settings& own = settings_of(model);
  CHECK(llama::kv_heads_of(model) == expected.kv_heads);
  CHECK(llama::head_dim_of(model) == expected.head_dim);
  CHECK(own.max_positions == expected.max_positions);
  CHECK(own.attention_bias == expected.bias);
  CHECK(own.query_key_norm == expected.norms_heads);
  CHECK(own.norm_epsilon == 1e-6);
  CHECK(own.rope.theta == 10000);
  CHECK(own.init_stddev == 0.02);
  CHECK_FALSE(own.tie_embeddings);
}

TEST_CASE("A null number of key-value heads means as many as heads, for every type") {
  for (const char* type : {"llama", "mistral", "qwen2", "qwen3"}) {
    const Json keys{{"num_key_value_heads", nullptr}, {"sliding_window", nullptr}};
    CHECK(llama::kv_heads_of(read(with(minimal(type), keys))) == 8);
  }
}

TEST_CASE("RoPE is read from the keys of transformers 4 and 5 alike") {
  const Json linear{{"factor", 4.0}};
  const Json llama3{{"factor", 8.0},
                    {"low_freq_factor", 1.5},
                    {"high_freq_factor", 5},
                    {"original_max_position_embeddings", 256}};
  const auto check = [&](const Json& keys, RopeScaling scaling) {
    INFO(keys.dump());
    const ModelConfig model = read(with(minimal(), keys));
    const llama::RopeSettings& rope = settings_of(model).rope;
    CHECK(rope.theta == 30000);
    CHECK(rope.scaling == scaling);
    if (scaling == RopeScaling::linear) CHECK(rope.factor == 4);
    if (scaling != RopeScaling::llama3) return;
    CHECK(rope.factor == 8);
    CHECK(rope.low_frequency == 1.5);
    CHECK(rope.high_frequency == 5);
    CHECK(rope.original == 256);
  };
  const Json theta{{"rope_theta", 30000.0}};
  check(theta, RopeScaling::none);
  check(with(theta, {{"rope_scaling", nullptr}}), RopeScaling::none);
  check({{"rope_parameters", with(theta, {{"rope_type", "default"}})}}, RopeScaling::none);
  for (const char* key : {"rope_type", "type"}) {
    const Json typed_linear = with(linear, {{key, "linear"}});
    const Json typed_llama3 = with(llama3, {{key, "llama3"}});
    check(with(theta, {{"rope_scaling", typed_linear}}), RopeScaling::linear);
    check(with(theta, {{"rope_scaling", typed_llama3}}), RopeScaling::llama3);
    check({{"rope_parameters", with(typed_linear, theta)}}, RopeScaling::linear);
    check({{"rope_parameters", with(typed_llama3, theta)}}, RopeScaling::llama3);
    check(with(theta,
               {{"rope_parameters", with(typed_llama3, theta)}, {"rope_scaling", typed_llama3}}),
          RopeScaling::llama3);
  }
}

TEST_CASE("Keys that change no arithmetic are accepted") {
  const ModelConfig plain = read(minimal());
  const Json keys{{"architectures", {"LlamaForCausalLM"}},
                  {"bos_token_id", 1},
                  {"eos_token_id", {2, 3}},
                  {"pad_token_id", nullptr},
                  {"unk_token_id", 0},
                  {"torch_dtype", "bfloat16"},
                  {"dtype", "bfloat16"},
                  {"transformers_version", "4.40.0"},
                  {"use_cache", false},
                  {"_name_or_path", "somewhere"},
                  {"_model_name_or_path", "a converted GGUF file"},
                  {"attention_dropout", 0.1},
                  {"hidden_act", "silu"},
                  {"mlp_bias", false},
                  {"pretraining_tp", 1},
                  {"partial_rotary_factor", 1},
                  {"rope_interleaved", false},
                  {"quantization_config", nullptr},
                  {"sliding_window", nullptr},
                  {"layer_types", {"full_attention", "full_attention", "full_attention"}}};
  CHECK(text_of(read(with(minimal(), keys))) == text_of(plain));
}

TEST_CASE("Initial weights of 0 are accepted, and a missing deviation is the default") {
  CHECK(settings_of(read(with(minimal(), {{"initializer_range", 0}}))).init_stddev == 0);
  const ModelConfig model = read(with(minimal(), {{"initializer_range", nullptr}}));
  CHECK(settings_of(model).init_stddev == 0.02);
  CHECK(written(read(with(minimal(), {{"initializer_range", 0.0}}))).at("initializer_range") == 0);
}

TEST_CASE("A factor of RoPE's default type has no effect") {
  const Json rope{{"rope_type", "default"}, {"factor", 2.0}};
  CHECK(settings_of(read(with(minimal(), {{"rope_scaling", rope}}))).rope.scaling ==
        RopeScaling::none);
}

TEST_CASE("Windows that no layer uses are accepted") {
  CHECK_NOTHROW(read(with(minimal("mistral"), {{"sliding_window", 131072}})));
  CHECK_NOTHROW(
      read(with(minimal("mistral"), {{"sliding_window", 128}, {"max_position_embeddings", 128}})));
  const Json heads{{"num_key_value_heads", 4}};
  for (const Json& keys : std::vector<Json>{
           {{"use_sliding_window", false}, {"sliding_window", 16}},
           {{"use_sliding_window", false}, {"sliding_window", 0}, {"max_window_layers", 0}},
           {{"use_sliding_window", true}, {"sliding_window", nullptr}},
           {{"use_sliding_window", true}, {"sliding_window", 16}, {"max_window_layers", 3}},
           {{"use_sliding_window", true}, {"sliding_window", 32768}, {"max_window_layers", 1}}}) {
    INFO(keys.dump());
    CHECK_NOTHROW(read(with(with(minimal("qwen2"), heads), keys)));
    CHECK_NOTHROW(read(with(with(minimal("qwen3"), heads), keys)));
  }
}

TEST_CASE("Arithmetic that dtrain lacks is refused by the key's name") {
  const auto check = [](const std::string& type, const Json& keys, const Names& names) {
    INFO(type << " " << keys.dump());
    CHECK_THAT(refusal(with(with(minimal(type), {{"num_key_value_heads", 4}}), keys)), names);
  };
  for (const char* type : {"yarn", "dynamic", "longrope", "mrope"}) {
    const Json rope{{"rope_type", type}, {"factor", 2.0}};
    check("llama", {{"rope_scaling", rope}}, Names("rope_scaling.rope_type", type));
    check("qwen3", {{"rope_parameters", rope}}, Names("rope_parameters.rope_type", type));
    check("llama", {{"rope_scaling", {{"type", type}, {"factor", 2.0}}}},
          Names("rope_scaling.type", type));
  }
  check("llama", {{"partial_rotary_factor", 0.5}}, Names("partial_rotary_factor", 0.5));
  check("llama", {{"rope_parameters", {{"rope_type", "default"}, {"partial_rotary_factor", 0.25}}}},
        Names("rope_parameters.partial_rotary_factor", 0.25));
  check("llama", {{"rope_scaling", {{"type", "linear"}, {"factor", 2}, {"attention_factor", 3}}}},
        Names("rope_scaling.attention_factor", 3));
  check("llama", {{"rope_interleaved", true}}, Names("rope_interleaved"));
  check("mistral", Json::object(), Names("sliding_window", 4096, 131072));
  check("mistral", {{"sliding_window", 1024}, {"max_position_embeddings", 2048}},
        Names("sliding_window", 1024, 2048));
  check("llama", {{"sliding_window", 1024}}, Names("sliding_window", 1024, 2048));
  check("qwen2", {{"use_sliding_window", true}, {"max_window_layers", 2}},
        Names("sliding_window", 4096));
  check("qwen3", {{"layer_types", {"full_attention", "sliding_attention", "full_attention"}}},
        Names("layer_types", "sliding_attention"));
  check("qwen3", {{"layer_types", {"full_attention"}}}, Names("layer_types", 3));
  check("llama", {{"hidden_act", "gelu"}}, Names("hidden_act", "gelu"));
  check("llama", {{"mlp_bias", true}}, Names("mlp_bias"));
  check("mistral", {{"sliding_window", nullptr}, {"attention_bias", true}},
        Names("attention_bias"));
  check("qwen2", {{"attention_bias", false}}, Names("attention_bias"));
  check("llama", {{"pretraining_tp", 2}}, Names("pretraining_tp", 2));
  check("llama", {{"quantization_config", {{"bits", 4}}}}, Names("quantization_config"));
  check("llama", {{"logit_scale", 2}}, Names("logit_scale", 2));
  check("gpt_neox", Json::object(), Names("model_type", "gpt_neox", "qwen3"));
}

TEST_CASE("Values of a wrong type, missing keys and contradictions are refused by name") {
  const Json all = minimal();
  for (const auto& [key, value] : all.items()) {
    if (key == "model_type") continue;
    Json config = minimal();
    config.erase(key);
    CHECK_THAT(refusal(config), Names(key));
    for (const Json& wrong : std::vector<Json>{"3", 2.5, -1, 0, true, Json::array({3}), 1e300}) {
      config[key] = wrong;
      CHECK_THAT(refusal(config), Names(key));
    }
  }
  const auto check = [](const Json& keys, const Names& names) {
    INFO(keys.dump());
    CHECK_THAT(refusal(with(minimal(), keys)), names);
  };
  check({{"model_type", 3}}, Names("model_type", 3));
  check({{"rms_norm_eps", "1e-5"}}, Names("rms_norm_eps"));
  check({{"rms_norm_eps", 0}}, Names("rms_norm_eps", 0));
  check({{"sliding_window", -1}}, Names("sliding_window", -1));
  check({{"tie_word_embeddings", 1}}, Names("tie_word_embeddings", 1));
  check({{"attention_dropout", "no"}}, Names("attention_dropout"));
  check({{"hidden_act", 3}}, Names("hidden_act", 3));
  check({{"rope_scaling", "linear"}}, Names("rope_scaling", "linear"));
  check({{"rope_scaling", {{"type", "linear"}}}}, Names("rope_scaling.factor"));
  check({{"rope_parameters", {{"rope_type", "llama3"}, {"factor", 8}}}},
        Names("rope_parameters.low_freq_factor"));
  check({{"rope_scaling", {{"type", "linear"}, {"rope_type", "llama3"}}}},
        Names("rope_scaling.type", "linear", "llama3"));
  check({{"rope_theta", 5}, {"rope_parameters", {{"rope_theta", 7.5}}}},
        Names("rope_parameters", 5, 7.5));
  check({{"rope_scaling", {{"type", "linear"}, {"factor", 2}}},
         {"rope_parameters", {{"type", "linear"}, {"factor", 3}}}},
        Names("rope_scaling", "rope_parameters"));
  check({{"num_key_value_heads", 3}}, Names("--kv-heads", 3));
  check({{"num_hidden_layers", 100000}}, Names(100000));
  CHECK_THAT(refusal_of_text(R"({"model_type": "llama", )"), Names("config.json"));
  CHECK_THAT(refusal_of_text(R"({"model_type": "llama", "vocab_size": 1, "vocab_size": 2})"),
             Names("vocab_size"));
}

TEST_CASE("A config.json without a model_type describes no model") {
  const TempFolder folder;
  CHECK_FALSE(hugging_face_model_in(folder.path("")));
  for (const char* text : {R"({"model": {"name": "llama"}})", "[]"}) {
    folder.write("config.json", text);
    CHECK_FALSE(hugging_face_model_in(folder.path("")));
  }
}

TEST_CASE("The model type follows from the settings") {
  ModelConfig model = read(minimal());
  const auto type = [&] { return written(model).at("model_type").get<std::string>(); };
  CHECK(type() == "llama");
  settings_of(model).attention_bias = AttentionBias::all;
  CHECK(type() == "llama");
  CHECK(written(model).at("attention_bias") == true);
  settings_of(model).attention_bias = AttentionBias::qkv;
  CHECK(type() == "qwen2");
  settings_of(model).query_key_norm = true;
  CHECK_THAT(message_of(ErrorKind::usage, [&] { (void)written(model); }),
             Names("--qk-norm", "--attention-bias", "qkv"));
  settings_of(model).attention_bias = AttentionBias::none;
  CHECK(type() == "qwen3");
  CHECK(written(model).at("architectures") == Json::array({"Qwen3ForCausalLM"}));
}

TEST_CASE("Settings that transformers lacks are refused") {
  ModelConfig model = read(with(minimal(), {{"head_dim", 16}}));
  model.heads = 5;
  settings_of(model).kv_heads = 1;
  CHECK_THAT(message_of(ErrorKind::usage, [&] { (void)written(model); }),
             Names("--heads", 5, "--width", 192));
}

TEST_CASE("A config.json that is written and read again gives the same settings") {
  const Json llama3{{"rope_type", "llama3"},
                    {"factor", 8.0},
                    {"low_freq_factor", 1.5},
                    {"high_freq_factor", 5},
                    {"original_max_position_embeddings", 256}};
  for (const Json& config : std::vector<Json>{
           minimal(), with(minimal(), {{"attention_bias", true}, {"num_key_value_heads", 2}}),
           with(minimal(), {{"rope_scaling", {{"type", "linear"}, {"factor", 2.5}}}}),
           with(minimal(), {{"rope_parameters", llama3}, {"tie_word_embeddings", true}}),
           with(minimal("mistral"), {{"sliding_window", nullptr}, {"rms_norm_eps", 1e-5}}),
           with(minimal("qwen2"), {{"num_key_value_heads", 4}, {"rope_theta", 1e6}}),
           with(minimal("qwen3"), {{"num_key_value_heads", 4}, {"initializer_range", 0.03}})}) {
    const ModelConfig model = read(config);
    const Json again = written(model, {.dtype = Dtype::bfloat16});
    ModelConfig second = read(again);
    // The text of the settings has the sizes that zeros stand for.
    ModelConfig first = model;
    settings_of(first).kv_heads = llama::kv_heads_of(model);
    settings_of(first).head_dim = llama::head_dim_of(model);
    CHECK(text_of(second) == text_of(first));
    CHECK(again.at("dtype") == "bfloat16");
    CHECK(again.at("torch_dtype") == "bfloat16");
  }
}

TEST_CASE("Token ids of a folder are exported as they are there, absent ones stay absent") {
  const TempFolder folder;
  const Json ids{{"bos_token_id", 1}, {"eos_token_id", {2, 3}}};
  folder.write("config.json", with(minimal(), ids).dump());
  const ExportedWeights weights{.end_token = 7, .token_ids_from = folder.path("")};
  for (const Json& json :
       {written(read(minimal()), weights), Json::parse(hugging_face_generation_config(weights))}) {
    CHECK(json.at("bos_token_id") == 1);
    CHECK(json.at("eos_token_id") == Json::array({2, 3}));
    CHECK_FALSE(json.contains("pad_token_id"));
  }
  folder.write("config.json", "{");
  CHECK_THAT(
      message_of(ErrorKind::checkpoint, [&] { (void)hugging_face_generation_config(weights); }),
      Names(folder.path("config.json")));
}

TEST_CASE("Exports have the keys of transformers 4 and 5, and the end of text") {
  const Json linear{{"rope_type", "linear"}, {"factor", 2.0}};
  const Json json = written(
      read(with(minimal(), {{"rope_theta", 500.0}, {"rope_scaling", linear}})), {.end_token = 7});
  CHECK(json.at("rope_theta") == 500);
  CHECK(json.at("rope_scaling") == linear);
  CHECK(json.at("rope_parameters") == with(linear, {{"rope_theta", 500.0}}));
  CHECK(json.at("eos_token_id") == 7);
  CHECK(json.at("bos_token_id").is_null());
  CHECK(written(read(minimal())).at("rope_scaling").is_null());
  CHECK(Json::parse(hugging_face_generation_config({.end_token = 7})).at("eos_token_id") == 7);
}

ModelConfig bdh_model(bool ties_layers) {
  return {.layers = 3,
          .width = 48,
          .heads = 3,
          .family = bdh::Settings{.neurons = 16, .tie_layers = ties_layers},
          .vocab = 300,
          .dropout = 0.25};
}

TEST_CASE("A config.json of a BDH model has every setting and names the model in Python") {
  const Json json = written(bdh_model(false), {.dtype = Dtype::bfloat16, .end_token = 7});
  CHECK(json == Json{{"architectures", Json::array({"BdhForCausalLM"})},
                     {"model_type", "bdh"},
                     {"auto_map",
                      {{"AutoConfig", "configuration_bdh.BdhConfig"},
                       {"AutoModelForCausalLM", "modeling_bdh.BdhForCausalLM"}}},
                     {"vocab_size", 300},
                     {"hidden_size", 48},
                     {"num_hidden_layers", 3},
                     {"num_attention_heads", 3},
                     {"neurons_per_head", 16},
                     {"tie_layers", false},
                     {"dropout", 0.25},
                     {"max_position_embeddings", 65536},
                     {"tie_word_embeddings", false},
                     {"dtype", "bfloat16"},
                     {"torch_dtype", "bfloat16"},
                     {"bos_token_id", nullptr},
                     {"eos_token_id", 7},
                     {"pad_token_id", nullptr}});
  CHECK(written(bdh_model(true)).at("tie_layers") == true);
}

TEST_CASE("A BDH model that is written and read again has the same settings") {
  for (const bool ties_layers : {true, false}) {
    const ModelConfig model = bdh_model(ties_layers);
    CHECK(text_of(read(written(model))) == text_of(model));
  }
}

TEST_CASE("A BDH model's config.json with missing, unknown or contradictory keys is refused") {
  const Json config = written(bdh_model(true));
  for (const char* key : {"num_hidden_layers", "hidden_size", "num_attention_heads", "vocab_size",
                          "neurons_per_head"}) {
    Json without = config;
    without.erase(key);
    CHECK_THAT(refusal(without), Names(key));
  }
  CHECK_THAT(refusal({{"model_type", "bdh"}, {"n_layer", 6}}), Names("num_hidden_layers"));
  CHECK_THAT(refusal(with(config, {{"rope_theta", 10000}})), Names("rope_theta", 10000));
  CHECK_THAT(refusal(with(config, {{"neurons_per_head", 15}})), Names("--neurons", 15));
  CHECK_THAT(refusal(with(config, {{"tie_layers", 1}})), Names("tie_layers", 1));
  CHECK_THAT(refusal(with(config, {{"tie_word_embeddings", true}})), Names("tie_word_embeddings"));
}

}  // namespace
}  // namespace dtrain::config::hugging_face_test
