#include "dtrain/config/bdh/hugging_face.h"

#include <array>
#include <nlohmann/json.hpp>

#include "dtrain/config/bdh/settings.h"
#include "dtrain/config/hugging_face/keys.h"

namespace dtrain::config::bdh {
namespace {

constexpr std::array<std::string_view, 1> kModelTypes{"bdh"};

}  // namespace

ModelConfig model_of(const Json& config, const std::string& origin) {
  HuggingFaceKeys keys(config, origin);
  ModelConfig model{.name = std::string(family().name),
                    .layers = keys.required_size("num_hidden_layers"),
                    .width = keys.required_size("hidden_size"),
                    .heads = keys.required_size("num_attention_heads"),
                    .vocab = keys.required_size("vocab_size")};
  model.dropout = keys.number("dropout").value_or(model.dropout);
  Settings& own = settings_of(model);
  own.neurons = keys.required_size("neurons_per_head");
  own.tie_layers = keys.flag("tie_layers").value_or(own.tie_layers);
  keys.require("tie_word_embeddings", false, "BDH with one matrix for embedding and head");
  // The limit of positions is a constant, and the code in Python is dtrain's.
  keys.skip({"max_position_embeddings", "auto_map"});
  keys.reject_unread();
  return model;
}

Json config_of(const ModelConfig& model) {
  const Settings& own = settings_of(model);
  return {{"architectures", Json::array({"BdhForCausalLM"})},
          {"model_type", kModelTypes.front()},
          {"auto_map",
           {{"AutoConfig", "configuration_bdh.BdhConfig"},
            {"AutoModelForCausalLM", "modeling_bdh.BdhForCausalLM"}}},
          {"vocab_size", model.vocab},
          {"hidden_size", model.width},
          {"num_hidden_layers", model.layers},
          {"num_attention_heads", model.heads},
          {"neurons_per_head", own.neurons},
          {"tie_layers", own.tie_layers},
          {"dropout", model.dropout},
          {"max_position_embeddings", kMaxPositions},
          {"tie_word_embeddings", false}};
}

const HuggingFaceFormat& hugging_face() {
  static const std::array kFiles{HuggingFaceFile{"configuration_bdh.py", kConfigurationBdh},
                                 HuggingFaceFile{"modeling_bdh.py", kModelingBdh}};
  static const HuggingFaceFormat kFormat{.model_types = kModelTypes,
                                         .model_of = model_of,
                                         .config_of = config_of,
                                         .files = kFiles,
                                         .needs_config = false};
  return kFormat;
}

}  // namespace dtrain::config::bdh
