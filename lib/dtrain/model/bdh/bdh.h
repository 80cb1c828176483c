// The BDH model (Baby Dragon Hatchling, "The Dragon Hatchling", arXiv 2509.26507): embedding, L
// levels, head.
#pragma once

#include <cstdint>
#include <memory>

#include "dtrain/config/config.h"
#include "dtrain/model/model.h"

namespace dtrain::model::bdh {

/// Sizes, by the letters of docs/guide/model.md.
struct BdhSizes {
  std::int64_t levels = 0;   ///< L
  std::int64_t width = 0;    ///< D
  std::int64_t heads = 0;    ///< nh
  std::int64_t neurons = 0;  ///< N, per head, even
  std::int64_t vocab = 0;    ///< V
  double dropout = 0;
  bool tie_levels = true;  ///< one encoder, encoder_v and decoder for all levels

  [[nodiscard]] std::int64_t all_neurons() const { return heads * neurons; }  ///< n = nh * N
};

[[nodiscard]] BdhSizes sizes_of(const config::ModelConfig& config);

/// The three matrices of a level.
struct LevelParameters {
  param::ParameterId encoder;    ///< (nh*N, D) in storage, (nh, D, N) exported
  param::ParameterId encoder_v;  ///< the same
  param::ParameterId decoder;    ///< (nh*N, D)
};

/// Where each parameter of a BDH stands in Model::parameters.
struct BdhParameters {
  param::ParameterId embed;  ///< (V, D)
  std::vector<LevelParameters> levels;
  param::ParameterId lm_head;  ///< (D, V)
};

[[nodiscard]] BdhParameters parameter_ids(const BdhSizes& sizes);

/// As much of the model as a rank at `place` holds (bdh_partition.h).
///
/// Throws: Error{usage} where the model cannot be cut so.
[[nodiscard]] std::unique_ptr<Model> make_bdh(const BdhSizes& sizes, std::int64_t seq_len,
                                              const TensorCoordinate& place = {},
                                              const ComputeOptions& computation = {});

}  // namespace dtrain::model::bdh
