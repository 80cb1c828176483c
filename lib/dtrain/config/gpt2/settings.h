// Settings specific to GPT-2 models, with or without biases as in nanoGPT.
#pragma once

#include <cstdint>

#include "dtrain/config/config.h"

namespace dtrain::config::gpt2 {

struct Settings {
  std::int64_t inner = 0;         // size of the MLP; 0: 4 times the width
  std::int64_t positions = 1024;  // learned positions, the longest sequence
  double norm_epsilon = 1e-5;
  bool biases = true;         // of linear maps and LayerNorms
  bool tie_head = true;       // the output layer multiplies by the embedding
  double init_stddev = 0.02;  // of embeddings and matrices
};

[[nodiscard]] inline Settings& settings_of(ModelConfig& model) {
  return model.family.get<Settings>();
}
[[nodiscard]] inline const Settings& settings_of(const ModelConfig& model) {
  return model.family.get<Settings>();
}

/// The size of the MLP, for which a setting of 0 stands for 4 times the width.
[[nodiscard]] std::int64_t inner_size_of(const ModelConfig& model);

/// FLOPs per token of a layer's forward pass; attention is counted causally.
[[nodiscard]] double layer_flops(std::int64_t width, std::int64_t inner, std::int64_t seq_len);

}  // namespace dtrain::config::gpt2
