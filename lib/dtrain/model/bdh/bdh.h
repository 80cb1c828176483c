// The BDH model (Baby Dragon Hatchling; "The Dragon Hatchling", arXiv 2509.26507): an embedding, L
// layers (called levels in this folder) and a head.
#pragma once

#include <cstdint>
#include <memory>

#include "dtrain/config/config.h"
#include "dtrain/model/model.h"

namespace dtrain::model::bdh {

/// The model's sizes; docs/guide/model.md defines the symbols.
struct BdhSizes {
  std::int64_t layers = 0;   ///< L
  std::int64_t width = 0;    ///< D
  std::int64_t heads = 0;    ///< nh
  std::int64_t neurons = 0;  ///< N: neurons per head, even
  std::int64_t vocab = 0;    ///< V
  double dropout = 0;
  bool tie_layers = true;  ///< all levels share encoder, encoder_v and decoder

  [[nodiscard]] std::int64_t all_neurons() const { return heads * neurons; }  ///< n = nh * N
};

[[nodiscard]] BdhSizes sizes_of(const config::ModelConfig& config);

/// Parameter ids of a level's three matrices.
struct LevelParameters {
  param::ParameterId encoder;    ///< (nh*N, D) in storage, (nh, D, N) exported
  param::ParameterId encoder_v;  ///< the same shapes
  param::ParameterId decoder;    ///< (nh*N, D)
};

/// Parameter ids of the whole model: indices in Model::parameters.
struct BdhParameters {
  param::ParameterId embed;  ///< (V, D)
  std::vector<LevelParameters> layers;
  param::ParameterId lm_head;  ///< (D, V)
};

[[nodiscard]] BdhParameters parameter_ids(const BdhSizes& sizes);

/// Creates the tensor-parallel slice of the model for the rank at `place` (bdh_partition.h).
///
/// Throws: Error{usage} if the model cannot be split that way.
[[nodiscard]] std::unique_ptr<Model> make_bdh(const BdhSizes& sizes, std::int64_t seq_len,
                                              const TensorCoordinate& place = {},
                                              const ComputeOptions& computation = {});

}  // namespace dtrain::model::bdh
