// Settings specific to BDH models, their FLOPs, and the choice of their attention chunk.
#pragma once

#include <cstdint>

#include "dtrain/config/family.h"

namespace dtrain::config::bdh {

/// The maximum sequence length: at later positions t, float32 cannot hold the fraction of
/// t * frequency.
inline constexpr std::int64_t kMaxPositions = 65536;

/// The settings that only BDH models have.
struct Settings {
  std::int64_t neurons = 512;     // N, per head
  std::int64_t import_heads = 0;  // of files that do not record it; 0: from the file
  bool tie_layers = true;         // all layers share one set of matrices
};

[[nodiscard]] inline Settings& settings_of(ModelConfig& model) {
  return model.family.get<Settings>();
}
[[nodiscard]] inline const Settings& settings_of(const ModelConfig& model) {
  return model.family.get<Settings>();
}

/// The sizes of a layer that determine its FLOPs.
struct LayerSizes {
  std::int64_t width = 0;    ///< D
  std::int64_t heads = 0;    ///< nh
  std::int64_t neurons = 0;  ///< n, of all heads
};

/// FLOPs per token of a layer's forward pass; attention is counted causally.
///
/// chunk: length (positions) of the chunks of attention; 0 for full attention.
[[nodiscard]] double layer_flops(const LayerSizes& sizes, std::int64_t seq_len, std::int64_t chunk);

/// The chunk length (positions) of chunked attention if it takes fewer FLOPs over `seq_len`
/// positions than full attention; otherwise 0. width: D.
[[nodiscard]] std::int64_t cheapest_chunk(std::int64_t width, std::int64_t seq_len);

/// The chunk length (positions, a power of two) that is predicted to be fastest with plain kernels
/// on a device; 0 if full attention is faster. neurons: N.
[[nodiscard]] std::int64_t fastest_chunk(std::int64_t width, std::int64_t neurons,
                                         const AttentionWorkload& work);

}  // namespace dtrain::config::bdh
