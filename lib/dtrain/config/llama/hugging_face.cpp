#include "dtrain/config/llama/hugging_face.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <vector>

#include "dtrain/base/error.h"
#include "dtrain/config/hugging_face/keys.h"
#include "dtrain/config/llama/settings.h"

namespace dtrain::config::llama {
namespace {

using Keys = HuggingFaceKeys;

constexpr std::string_view kFullAttention = "full_attention";

/// The implications of a model_type, and transformers' defaults of its keys (checked with 4.57 and 5.24).
struct ModelType {
  std::string_view name;
  std::string_view architecture;
  std::int64_t kv_heads = 0;  // 0: as many as heads
  std::int64_t head_dim = 0;  // 0: width / heads
  std::int64_t max_positions = 0;
  /// Applies sliding_window to every layer, whatever use_sliding_window and layer_types say.
  bool has_only_window = true;
  std::optional<std::int64_t> window = {};
  /// Biases of queries, keys and values, whatever attention_bias says.
  AttentionBias attention_bias = AttentionBias::none;
  bool reads_attention_bias = false;
  bool norms_heads = false;
};

constexpr std::array kTypes{ModelType{.name = "llama",
                                      .architecture = "LlamaForCausalLM",
                                      .max_positions = 2048,
                                      .reads_attention_bias = true},
                            ModelType{.name = "mistral",
                                      .architecture = "MistralForCausalLM",
                                      .kv_heads = 8,
                                      .max_positions = 131072,
                                      .window = 4096},
                            ModelType{.name = "qwen2",
                                      .architecture = "Qwen2ForCausalLM",
                                      .kv_heads = 32,
                                      .max_positions = 32768,
                                      .has_only_window = false,
                                      .window = 4096,
                                      .attention_bias = AttentionBias::qkv},
                            ModelType{.name = "qwen3",
                                      .architecture = "Qwen3ForCausalLM",
                                      .kv_heads = 32,
                                      .head_dim = 128,
                                      .max_positions = 32768,
                                      .has_only_window = false,
                                      .window = 4096,
                                      .reads_attention_bias = true,
                                      .norms_heads = true}};

constexpr double kDefaultEpsilon = 1e-6;
constexpr double kDefaultTheta = 10000;
constexpr double kDefaultStddev = 0.02;
constexpr std::int64_t kDefaultWindowLayers = 28;  // of Qwen

const ModelType& type_named(std::string_view name) {
  const auto* const found = std::ranges::find(kTypes, name, &ModelType::name);
  DTRAIN_CHECK(found != kTypes.end(), "{}", name);
  return *found;
}

/// One object of RoPE's settings, and its base if it has one.
struct Rope {
  RopeSettings scaling;
  std::optional<double> theta;
};

RopeScaling scaling_in(Keys& keys) {
  const auto type = keys.text("rope_type");
  const auto old_type = keys.text("type");
  if (type && old_type && type != old_type) {
    keys.refuse("type", fmt::format("but rope_type is \"{}\"; remove one of them", *type));
  }
  const std::string name = type ? *type : old_type.value_or("default");
  if (name == "default") return RopeScaling::none;
  if (name == "linear") return RopeScaling::linear;
  if (name == "llama3") return RopeScaling::llama3;
  keys.refuse(type ? "rope_type" : "type", "but dtrain knows default, linear and llama3");
}

Rope rope_in(Keys keys) {
  Rope rope;
  rope.scaling.scaling = scaling_in(keys);
  rope.theta = keys.number("rope_theta");
  keys.require("partial_rotary_factor", 1.0, "rotation of a part of each head");
  if (rope.scaling.scaling != RopeScaling::none) {
    rope.scaling.factor = keys.required_number("factor");
  }
  if (rope.scaling.scaling == RopeScaling::llama3) {
    rope.scaling.low_frequency = keys.required_number("low_freq_factor");
    rope.scaling.high_frequency = keys.required_number("high_freq_factor");
    rope.scaling.original = keys.required_size("original_max_position_embeddings");
  }
  keys.skip({"factor", "original_max_position_embeddings"});  // without effect on other types
  keys.reject_unread();
  return rope;
}

bool are_equal(const RopeSettings& a, const RopeSettings& b) {
  return a.scaling == b.scaling && a.factor == b.factor && a.low_frequency == b.low_frequency &&
         a.high_frequency == b.high_frequency && a.original == b.original;
}

// transformers 5 has one object, version 4 a base and an object without it.
RopeSettings rope_of(Keys& keys) {
  constexpr std::string_view kNew = "rope_parameters";
  constexpr std::string_view kOld = "rope_scaling";
  keys.require("partial_rotary_factor", 1.0, "rotation of a part of each head");
  keys.require("rope_interleaved", false, "rotation of neighbouring elements");
  RopeSettings rope;
  std::optional<double> theta = keys.number("rope_theta");
  bool is_scaled = false;
  for (const std::string_view key : {kNew, kOld}) {
    auto object = keys.object(key);
    if (!object) continue;
    const Rope found = rope_in(*std::move(object));
    if (is_scaled && !are_equal(rope, found.scaling)) {
      keys.refuse(key, fmt::format("but {} differs; remove one of them", kNew));
    }
    if (theta && found.theta && theta != found.theta) {
      keys.refuse(key, fmt::format("but another rope_theta is {}; remove one of them", *theta));
    }
    if (found.theta) theta = found.theta;
    rope = found.scaling;
    is_scaled = true;
  }
  rope.theta = theta.value_or(kDefaultTheta);
  return rope;
}

// A window that no layer uses, or that covers every position, changes nothing.
void refuse_windows(Keys& keys, const ModelType& type, const ModelConfig& model) {
  const auto layer_types = keys.texts("layer_types");
  if (layer_types && (std::ranges::count(*layer_types, kFullAttention) != model.layers ||
                      std::ssize(*layer_types) != model.layers)) {
    keys.refuse("layer_types", fmt::format("but dtrain has only {}, of which num_hidden_layers "
                                           "needs {}",
                                           kFullAttention, model.layers));
  }
  const bool is_on = keys.flag("use_sliding_window").value_or(false);
  const auto first = keys.count("max_window_layers", kDefaultWindowLayers);
  const auto window = keys.count("sliding_window", type.window);
  const bool may_be_used =
      type.has_only_window ||
      (is_on && !layer_types && first.value_or(kDefaultWindowLayers) < model.layers);
  if (!may_be_used || !window || *window >= settings_of(model).max_positions) return;
  const std::string by_default =
      keys.has("sliding_window") ? "" : fmt::format("its default is {} and ", *window);
  keys.refuse("sliding_window",
              fmt::format("but {}dtrain attends to all positions: it must be null, or at least "
                          "max_position_embeddings ({})",
                          by_default, settings_of(model).max_positions));
}

AttentionBias attention_bias_of(Keys& keys, const ModelType& type) {
  if (!type.reads_attention_bias) {
    const bool has_bias = type.attention_bias != AttentionBias::none;
    keys.require("attention_bias", has_bias, fmt::format("such {} models", type.name));
    return type.attention_bias;
  }
  return keys.flag("attention_bias").value_or(false) ? AttentionBias::all : AttentionBias::none;
}

std::int64_t head_dim_in(Keys& keys, const ModelType& type) {
  if (type.head_dim > 0 && !keys.has("head_dim")) {
    (void)keys.size("head_dim");
    return type.head_dim;
  }
  return type.head_dim > 0 ? keys.required_size("head_dim") : keys.size("head_dim").value_or(0);
}

// Without epsilon, a row of zeros would become NaN.
double epsilon_in(Keys& keys) {
  const double epsilon = keys.number("rms_norm_eps").value_or(kDefaultEpsilon);
  if (epsilon <= 0) {
    keys.refuse("rms_norm_eps", "but it must be above 0: without it, RMSNorm of a zero is NaN");
  }
  return epsilon;
}

void refuse_other_arithmetic(Keys& keys) {
  const auto activation = keys.text("hidden_act");
  if (activation && *activation != "silu" && *activation != "swish") {
    keys.refuse("hidden_act", "but dtrain's MLP has silu");
  }
  keys.require("mlp_bias", false, "biases in the MLP");
  keys.require("pretraining_tp", 1, "sums in slices");
  keys.require("quantization_config", nullptr, "quantised weights: give the model before that");
  keys.require("add_cross_attention", false, "cross-attention");
  keys.require("cross_attention_hidden_size", nullptr, "cross-attention");
  keys.require("pruned_heads", Json::object(), "pruned heads");
  keys.require("use_mrope", false, "RoPE of several dims");
}

Json rope_json(const RopeSettings& rope) {
  switch (rope.scaling) {
    case RopeScaling::none:
      return {{"rope_type", "default"}};
    case RopeScaling::linear:
      return {{"rope_type", "linear"}, {"factor", rope.factor}};
    case RopeScaling::llama3:
      return {{"rope_type", "llama3"},
              {"factor", rope.factor},
              {"low_freq_factor", rope.low_frequency},
              {"high_freq_factor", rope.high_frequency},
              {"original_max_position_embeddings", rope.original}};
  }
  DTRAIN_CHECK(false);
}

void add_rope(const RopeSettings& rope, Json& json) {
  Json parameters = rope_json(rope);
  const bool is_scaled = rope.scaling != RopeScaling::none;
  json["rope_scaling"] = is_scaled ? parameters : Json();
  json["rope_theta"] = rope.theta;
  parameters["rope_theta"] = rope.theta;
  json["rope_parameters"] = std::move(parameters);
}

const ModelType& type_of(const ModelConfig& model) {
  const Settings& own = settings_of(model);
  const bool is_qkv = own.attention_bias == AttentionBias::qkv;
  if (own.query_key_norm && is_qkv) {
    base::fail(base::ErrorKind::usage,
               "--format huggingface: --qk-norm on is for Qwen3, which has no --attention-bias "
               "qkv; leave --format out to write a safetensors file");
  }
  const ModelType& type = type_named(own.query_key_norm ? "qwen3" : (is_qkv ? "qwen2" : "llama"));
  if (type.name == "llama" && model.width % model.heads != 0) {
    base::fail(base::ErrorKind::usage,
               "--format huggingface: --heads {} does not divide --width {}, which transformers "
               "refuses of llama models; leave --format out to write a safetensors file",
               model.heads, model.width);
  }
  return type;
}

}  // namespace

ModelConfig model_of(const Json& config, const std::string& origin) {
  Keys keys(config, origin);
  const ModelType& type = type_named(keys.text("model_type").value_or(""));
  ModelConfig model{.name = std::string(family().name),
                    .layers = keys.required_size("num_hidden_layers"),
                    .width = keys.required_size("hidden_size"),
                    .heads = keys.required_size("num_attention_heads"),
                    .vocab = keys.required_size("vocab_size"),
                    .dropout = 0};
  Settings& own = settings_of(model);
  own.kv_heads = keys.size("num_key_value_heads", type.kv_heads).value_or(0);
  own.head_dim = head_dim_in(keys, type);
  own.intermediate = keys.required_size("intermediate_size");
  own.norm_epsilon = epsilon_in(keys);
  own.rope = rope_of(keys);
  own.attention_bias = attention_bias_of(keys, type);
  own.query_key_norm = type.norms_heads;
  own.tie_embeddings = keys.flag("tie_word_embeddings").value_or(false);
  own.init_stddev = keys.number("initializer_range").value_or(kDefaultStddev);
  own.max_positions =
      keys.size("max_position_embeddings", type.max_positions).value_or(type.max_positions);
  // Dropout of attention weights, which dtrain does not have: its dropout is that of --dropout.
  (void)keys.number("attention_dropout");
  refuse_windows(keys, type, model);
  refuse_other_arithmetic(keys);
  keys.reject_unread();
  return model;
}

Json config_of(const ModelConfig& model) {
  const Settings& own = settings_of(model);
  const ModelType& type = type_of(model);
  Json json{{"architectures", Json::array({type.architecture})},
            {"model_type", type.name},
            {"vocab_size", model.vocab},
            {"hidden_size", model.width},
            {"intermediate_size", intermediate_of(model)},
            {"num_hidden_layers", model.layers},
            {"num_attention_heads", model.heads},
            {"num_key_value_heads", kv_heads_of(model)},
            {"head_dim", head_dim_of(model)},
            {"hidden_act", "silu"},
            {"rms_norm_eps", own.norm_epsilon},
            {"max_position_embeddings", own.max_positions},
            {"initializer_range", own.init_stddev},
            {"tie_word_embeddings", own.tie_embeddings},
            {"attention_dropout", 0.0},
            {"use_cache", true}};
  if (type.reads_attention_bias) {
    json["attention_bias"] = own.attention_bias == AttentionBias::all;
  }
  if (type.has_only_window) {
    json["mlp_bias"] = false;
    json["pretraining_tp"] = 1;
  } else {
    json["use_sliding_window"] = false;
    json["sliding_window"] = nullptr;
  }
  add_rope(own.rope, json);
  return json;
}

const HuggingFaceFormat& hugging_face() {
  static constexpr auto kNames = [] {
    std::array<std::string_view, kTypes.size()> names;
    std::ranges::transform(kTypes, names.begin(), &ModelType::name);
    return names;
  }();
  static constexpr std::string_view kChildren[] = {"embed_tokens.", "layers.", "norm.",
                                                   "rotary_emb."};
  static constexpr HuggingFaceFormat kFormat{.model_types = kNames,
                                             .model_of = model_of,
                                             .config_of = config_of,
                                             .module = {.prefix = "model.", .children = kChildren}};
  return kFormat;
}

}  // namespace dtrain::config::llama
