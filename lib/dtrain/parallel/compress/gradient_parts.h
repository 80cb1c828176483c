// Cuts a rank's gradients into the parts that are compressed one by one.
#pragma once

#include <cstdint>
#include <vector>

#include "dtrain/config/values.h"
#include "dtrain/param/arena.h"

namespace dtrain::parallel {

/// How gradients are compressed between replicas.
struct Compression {
  config::Compression scheme = {};
  std::int64_t min_elements = 0;  ///< a rank's part of a parameter with fewer is sent whole

  bool operator==(const Compression&) const = default;
};

/// Neighbouring gradients that travel together.
struct GradientPart {
  param::ElementRange range;  ///< of the arena
  param::ParameterId id{};    ///< whose they are; of several the last
  bool is_compressed = false;
  /// As a matrix, where the scheme needs one: rows whole.
  std::int64_t rows = 0;
  std::int64_t columns = 0;

  [[nodiscard]] std::int64_t size() const { return range.size(); }
};

/// All that the shard trains but for padding, from the arena's end to its beginning: the last
/// parameters' gradients are final first. Parts that are not compressed are merged with such
/// neighbours of the same unit.
///
/// compression: not none.
[[nodiscard]] std::vector<GradientPart> gradient_parts(const param::ArenaLayout& layout,
                                                       param::ShardId shard,
                                                       const Compression& compression);

}  // namespace dtrain::parallel
