// Llama models: an embedding, L layers of grouped-query attention and a SwiGLU MLP, and a head.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "dtrain/config/config.h"
#include "dtrain/config/llama/settings.h"
#include "dtrain/model/model.h"
#include "dtrain/model/transformer/parameter_list.h"

namespace dtrain::model::llama {

/// The model's sizes.
struct LlamaSizes {
  std::int64_t layers = 0;
  std::int64_t width = 0;         ///< D
  std::int64_t heads = 0;         ///< H, of queries
  std::int64_t kv_heads = 0;      ///< K, of keys and values; divides H
  std::int64_t head_dim = 0;      ///< d, even
  std::int64_t intermediate = 0;  ///< I, of the MLP
  std::int64_t vocab = 0;         ///< V
  double dropout = 0;
  double norm_epsilon = 1e-5;
  double init_stddev = 0.02;
  config::llama::RopeSettings rope = {};
  bool biases_qkv = false;
  bool biases_output = false;
  bool norms_heads = false;      ///< RMSNorm over each head's query and key
  bool ties_embeddings = false;  ///< the head multiplies by the embedding
};

[[nodiscard]] LlamaSizes sizes_of(const config::ModelConfig& config);

/// The part of the model that a rank of the tensor axis holds: H/tp heads of queries with the rows
/// of the projections that they need, and its part of the I columns of the MLP. If tp divides K, a
/// rank also holds K/tp heads of keys and values; otherwise all of them, and computes those that its
/// queries use.
struct LlamaSlice {
  LlamaSizes whole;
  TensorCoordinate place;
  std::int64_t heads = 0;          ///< of queries, computed here
  std::int64_t first_head = 0;     ///< the first of them
  bool splits_kv = false;          ///< keys' and values' projections are split by heads
  std::int64_t kv_heads = 0;       ///< of keys and values, computed here
  std::int64_t first_kv_head = 0;  ///< the first of them
  std::int64_t intermediate = 0;   ///< columns of the MLP, held here
  std::int64_t first_hidden = 0;   ///< the first of them
  VocabularySlice vocab = {};
};

/// Returns the slice of the rank at `place`.
///
/// Throws: Error{usage} naming --tp and the size that it does not divide, or that is below it.
[[nodiscard]] LlamaSlice slice_of(const LlamaSizes& sizes, const TensorCoordinate& place);

/// Parameter ids of a layer.
struct LayerParameters {
  param::ParameterId input_norm;                       ///< (D)
  param::ParameterId query;                            ///< (H*d, D)
  param::ParameterId key;                              ///< (K*d, D)
  param::ParameterId value;                            ///< (K*d, D)
  param::ParameterId output;                           ///< (D, H*d)
  param::ParameterId attended_norm;                    ///< (D), before the MLP
  param::ParameterId gate;                             ///< (I, D)
  param::ParameterId up;                               ///< (I, D)
  param::ParameterId down;                             ///< (D, I)
  std::optional<param::ParameterId> query_bias = {};   ///< (H*d)
  std::optional<param::ParameterId> key_bias = {};     ///< (K*d)
  std::optional<param::ParameterId> value_bias = {};   ///< (K*d)
  std::optional<param::ParameterId> output_bias = {};  ///< (D)
  std::optional<param::ParameterId> query_norm = {};   ///< (d)
  std::optional<param::ParameterId> key_norm = {};     ///< (d)
};

/// All parameters of a model, under the names of Hugging Face's files.
struct LlamaParameters {
  param::ParameterSpecs specs;
  param::ParameterId embed;  ///< (V, D)
  std::vector<LayerParameters> layers;
  param::ParameterId norm;  ///< (D)
  param::ParameterId head;  ///< (V, D); the embedding if tied
};

[[nodiscard]] LlamaParameters parameters_of(const LlamaSlice& slice);

/// Creates the slice of the model that a rank at `place` holds.
///
/// Throws: as slice_of.
[[nodiscard]] std::unique_ptr<Model> make_llama(const LlamaSizes& sizes, std::int64_t seq_len,
                                                const TensorCoordinate& place = {},
                                                config::Kernels kernels = config::Kernels::plain);

}  // namespace dtrain::model::llama
