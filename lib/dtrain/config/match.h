// Chooses the sizes of a model that has as many parameters, or FLOPs per token, as another one
// (--match).
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "dtrain/config/config.h"
#include "dtrain/config/family.h"

namespace dtrain::config {

/// The largest allowed difference of the two counts, relative to the matched model's.
inline constexpr double kMatchTolerance = 0.02;

/// The number of parameters, or the FLOPs per token of a training step.
///
/// config: for FLOPs after resolve_computation, except for a family without attention_chunk.
[[nodiscard]] double count_of(MatchBy by, const Config& config);

/// The model to size, and the count to reach.
struct SizeRequest {
  /// As for count_of. Layers and heads are those of the matched model unless given; the other free
  /// sizes are ignored.
  Config config;
  MatchBy by = MatchBy::parameters;
  double count = 0;                          ///< of the matched model
  std::vector<std::string_view> fixed = {};  ///< keys of the sizes that stay as they are
};

struct SizedModel {
  ModelConfig model;
  double count = 0;
  double difference = 0;  ///< count / SizeRequest::count - 1

  [[nodiscard]] bool is_match() const;
};

/// Chooses the sizes whose count is within kMatchTolerance; if there are none, the nearest ones.
/// - Heads stay. The number of layers stays if a match exists for it; otherwise the closest number
///   with a match is chosen.
/// - The width is the largest one whose model has at most the wanted count, given the family's usual
///   value of the tuned size (Sizing::usual_value); if that size is fixed, also the next width.
/// - The tuned size is the multiple of 8 with the nearest count, or, if it is no match, the multiple
///   of 4, 2 or 1.
///
/// No I/O; the result depends on the request only.
[[nodiscard]] SizedModel match_sizes(const SizeRequest& request);

}  // namespace dtrain::config
