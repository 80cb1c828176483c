// Settings specific to Llama models (Llama 2 and 3, SmolLM2, Mistral, Qwen2 and Qwen3), and the FLOPs
// of their layers.
#pragma once

#include <cstdint>
#include <span>

#include "dtrain/config/config.h"
#include "dtrain/config/values/values.h"

namespace dtrain::config::llama {

/// How RoPE's frequencies are scaled for contexts longer than those of pretraining.
enum class RopeScaling { none, linear, llama3 };
/// The linear maps of attention that have a bias: none (Llama), those of queries, keys and values
/// (Qwen2), or also the output's.
enum class AttentionBias { none, qkv, all };

inline constexpr Choice kRopeScalings[] = {
    {"none", RopeScaling::none}, {"linear", RopeScaling::linear}, {"llama3", RopeScaling::llama3}};
inline constexpr Choice kAttentionBiases[] = {
    {"none", AttentionBias::none}, {"qkv", AttentionBias::qkv}, {"all", AttentionBias::all}};
constexpr std::span<const Choice> choices_of(RopeScaling) { return kRopeScalings; }
constexpr std::span<const Choice> choices_of(AttentionBias) { return kAttentionBiases; }

struct RopeSettings {
  double theta = 10000;
  RopeScaling scaling = RopeScaling::none;
  double factor = 8;             // linear, llama3: how many times longer the context becomes
  double low_frequency = 1;      // llama3: longer wavelengths than original / low are scaled
  double high_frequency = 4;     // llama3: shorter wavelengths than original / high are not
  std::int64_t original = 8192;  // llama3: positions of pretraining
};

struct Settings {
  std::int64_t kv_heads = 0;      // 0: as many as heads
  std::int64_t head_dim = 0;      // 0: width / heads
  std::int64_t intermediate = 0;  // of the MLP; 0: 8/3 of the width, rounded up to a multiple of 64
  double norm_epsilon = 1e-5;
  RopeSettings rope = {};
  AttentionBias attention_bias = AttentionBias::none;
  bool query_key_norm = false;        // Qwen3: RMSNorm over each head's query and key
  bool tie_embeddings = false;        // the head multiplies by the embedding
  double init_stddev = 0.02;          // of embeddings and matrices
  std::int64_t max_positions = 2048;  // longest sequence; exported, and limits generation
};

[[nodiscard]] inline Settings& settings_of(ModelConfig& model) {
  return model.family.get<Settings>();
}
[[nodiscard]] inline const Settings& settings_of(const ModelConfig& model) {
  return model.family.get<Settings>();
}

/// The sizes that settings of 0 stand for.
[[nodiscard]] std::int64_t kv_heads_of(const ModelConfig& model);
[[nodiscard]] std::int64_t head_dim_of(const ModelConfig& model);
[[nodiscard]] std::int64_t intermediate_of(const ModelConfig& model);

/// The sizes of a layer that determine its FLOPs.
struct LayerSizes {
  std::int64_t width = 0;         ///< D
  std::int64_t queries = 0;       ///< H*d, of all heads
  std::int64_t keys = 0;          ///< K*d, of all heads of keys and values
  std::int64_t intermediate = 0;  ///< I
};

/// FLOPs per token of a layer's forward pass; attention is counted causally.
[[nodiscard]] double layer_flops(const LayerSizes& sizes, std::int64_t seq_len);

}  // namespace dtrain::config::llama
