#include "dtrain/config/gpt2/hugging_face.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <string_view>

#include "dtrain/base/error.h"
#include "dtrain/config/gpt2/settings.h"
#include "dtrain/config/hugging_face/keys.h"

namespace dtrain::config::gpt2 {
namespace {

using Keys = HuggingFaceKeys;

constexpr std::string_view kTanhGelu = "gelu_new";

// Names of the same function in transformers.
bool is_tanh_gelu(std::string_view activation) {
  return activation == kTanhGelu || activation == "gelu_pytorch_tanh" || activation == "gelu_fast";
}

void refuse_what_gpt2_lacks(Keys& keys) {
  const auto activation = keys.text("activation_function");
  if (activation && !is_tanh_gelu(*activation)) {
    keys.refuse("activation_function",
                fmt::format("but the MLP of dtrain's gpt2 has {}", kTanhGelu));
  }
  keys.require("scale_attn_weights", true, "scores without a scale");
  keys.require("scale_attn_by_inverse_layer_idx", false, "scale of scores by layer");
  keys.require("add_cross_attention", false, "cross-attention");
  keys.require("cross_attention_hidden_size", nullptr, "cross-attention");
  keys.require("quantization_config", nullptr, "quantised weights: give the model before that");
  keys.require("pruned_heads", Json::object(), "pruned heads");
}

// Dropout of training, which is that of --dropout; the dtype of scores, which changes rounding
// alone; an older name of n_positions, which transformers ignores; the head of other tasks.
void skip_what_changes_no_logit(Keys& keys) {
  keys.skip({"attn_pdrop", "embd_pdrop", "resid_pdrop", "reorder_and_upcast_attn", "n_ctx",
             "summary_activation", "summary_first_dropout", "summary_proj_to_labels",
             "summary_type", "summary_use_proj", "n_special", "predict_special_tokens"});
}

}  // namespace

ModelConfig model_of(const Json& config, const std::string& origin) {
  constexpr Settings kDefaults;  // as in transformers
  Keys keys(config, origin);
  ModelConfig model{.name = std::string(family().name),
                    .layers = keys.required_size("n_layer"),
                    .width = keys.required_size("n_embd"),
                    .heads = keys.required_size("n_head"),
                    .vocab = keys.required_size("vocab_size"),
                    .dropout = 0};
  Settings& own = settings_of(model);
  own.inner = keys.size("n_inner").value_or(0);
  own.positions = keys.size("n_positions").value_or(kDefaults.positions);
  own.norm_epsilon = keys.number("layer_norm_epsilon").value_or(kDefaults.norm_epsilon);
  own.tie_head = keys.flag("tie_word_embeddings").value_or(kDefaults.tie_head);
  own.init_stddev = keys.number("initializer_range").value_or(kDefaults.init_stddev);
  refuse_what_gpt2_lacks(keys);
  skip_what_changes_no_logit(keys);
  keys.reject_unread();
  return model;
}

Json config_of(const ModelConfig& model) {
  const Settings& own = settings_of(model);
  if (!own.biases) {
    base::fail(base::ErrorKind::usage,
               "--format huggingface: this model has --biases off, but transformers' gpt2 models "
               "have biases; leave --format out to write a safetensors file");
  }
  return {{"architectures", Json::array({"GPT2LMHeadModel"})},
          {"model_type", "gpt2"},
          {"vocab_size", model.vocab},
          {"n_positions", own.positions},
          {"n_embd", model.width},
          {"n_layer", model.layers},
          {"n_head", model.heads},
          {"n_inner", own.inner > 0 ? Json(own.inner) : Json()},
          {"activation_function", kTanhGelu},
          {"layer_norm_epsilon", own.norm_epsilon},
          {"initializer_range", own.init_stddev},
          {"tie_word_embeddings", own.tie_head},
          {"scale_attn_weights", true},
          {"scale_attn_by_inverse_layer_idx", false},
          {"reorder_and_upcast_attn", false},
          {"add_cross_attention", false},
          {"attn_pdrop", 0.0},
          {"embd_pdrop", 0.0},
          {"resid_pdrop", 0.0},
          {"use_cache", true}};
}

const HuggingFaceFormat& hugging_face() {
  static constexpr std::string_view kTypes[] = {"gpt2"};
  static constexpr std::string_view kChildren[] = {"wte.", "wpe.", "h.", "ln_f."};
  static constexpr HuggingFaceFormat kFormat{
      .model_types = kTypes,
      .model_of = model_of,
      .config_of = config_of,
      .module = {.prefix = "transformer.", .children = kChildren}};
  return kFormat;
}

}  // namespace dtrain::config::gpt2
