// GPT-2 models: embeddings of tokens and positions, L layers of attention and a GELU MLP, and a head.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "dtrain/config/config.h"
#include "dtrain/model/model.h"
#include "dtrain/model/transformer/parameter_list.h"

namespace dtrain::model::gpt2 {

/// The model's sizes.
struct Gpt2Sizes {
  std::int64_t layers = 0;     ///< L
  std::int64_t width = 0;      ///< D
  std::int64_t heads = 0;      ///< H, divides D
  std::int64_t inner = 0;      ///< I, of the MLP
  std::int64_t positions = 0;  ///< P, the longest sequence
  std::int64_t vocab = 0;      ///< V
  double dropout = 0;
  double norm_epsilon = 1e-5;
  double init_stddev = 0.02;
  bool has_biases = true;  ///< of linear maps and norms
  bool ties_head = true;   ///< the head multiplies by the embedding of tokens

  [[nodiscard]] std::int64_t head_dim() const { return width / heads; }  ///< d
};

[[nodiscard]] Gpt2Sizes sizes_of(const config::ModelConfig& config);

/// The part of the model that a rank of the tensor axis holds: H/tp heads and its part of the I
/// columns of the MLP. The biases that are added to sums over ranks, the norms and the embedding of positions are
/// whole on every rank.
struct Gpt2Slice {
  Gpt2Sizes whole;
  TensorCoordinate place;
  std::int64_t heads = 0;        ///< held here
  std::int64_t inner = 0;        ///< columns of the MLP, held here
  std::int64_t first_inner = 0;  ///< the first of them
  VocabularySlice vocab = {};
};

/// Returns the slice of the rank at `place`.
///
/// Throws: Error{usage} naming --tp and the size that it does not divide, or that is below it.
[[nodiscard]] Gpt2Slice slice_of(const Gpt2Sizes& sizes, const TensorCoordinate& place);

/// Parameter ids of a norm or a linear map.
struct WeightAndBias {
  param::ParameterId weight;
  std::optional<param::ParameterId> bias = {};
};

/// Parameters of a layer. In files the weights of linear maps are (in, out).
struct LayerParameters {
  WeightAndBias attention_norm;  ///< (D)
  /// (H*3*d, D), (H*3*d): query, key and value of the first head, then of the second, ... In files
  /// the queries of all heads come first, then the keys and the values.
  WeightAndBias packed;
  WeightAndBias output;    ///< (H*d, D), (D)
  WeightAndBias mlp_norm;  ///< (D)
  WeightAndBias up;        ///< (I, D), (I)
  WeightAndBias down;      ///< (I, D), (D)
};

/// All parameters of a model, under the names of Hugging Face's files.
struct Gpt2Parameters {
  param::ParameterSpecs specs;
  param::ParameterId tokens;     ///< (V, D)
  param::ParameterId positions;  ///< (P, D)
  std::vector<LayerParameters> layers;
  WeightAndBias norm;       ///< (D)
  param::ParameterId head;  ///< (V, D); the embedding of tokens if tied
};

[[nodiscard]] Gpt2Parameters parameters_of(const Gpt2Slice& slice);

/// Creates the slice of the model that a rank at `place` holds.
///
/// Throws: as slice_of; Error{usage} if seq_len exceeds the positions.
[[nodiscard]] std::unique_ptr<Model> make_gpt2(const Gpt2Sizes& sizes, std::int64_t seq_len,
                                               const TensorCoordinate& place = {},
                                               config::Kernels kernels = config::Kernels::plain);

}  // namespace dtrain::model::gpt2
