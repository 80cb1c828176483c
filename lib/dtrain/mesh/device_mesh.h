// Assigns each rank its place on the axes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "dtrain/config/values/mesh_shape.h"

namespace dtrain::mesh {

using config::Axis;
using config::kAxes;
using config::MeshShape;

using Ranks = std::vector<std::int64_t>;
using Lines = std::vector<Ranks>;

/// Groups of `size` among `count` places, whose members are `stride` apart, by their first place.
/// Each place is in exactly one.
[[nodiscard]] Lines combs(std::int64_t count, std::int64_t size, std::int64_t stride);

/// Runs of neighbours on an axis, each a group of its own.
struct Subgroup {
  std::string name;       ///< in messages
  std::int64_t size = 1;  ///< ranks of a run; divides the axis
};

/// The ranks of a job as a grid: ranks that are neighbours on the innermost axis have numbers next
/// to each other. A value.
class DeviceMesh {
 public:
  /// Throws: Error{usage} if a size is below 1.
  explicit DeviceMesh(const MeshShape& sizes);

  [[nodiscard]] const MeshShape& sizes() const { return sizes_; }
  [[nodiscard]] std::int64_t size(Axis axis) const { return sizes_[axis]; }
  [[nodiscard]] std::int64_t world_size() const { return sizes_.num_ranks(); }

  [[nodiscard]] MeshShape coordinate(std::int64_t rank) const;

  /// Every line along `axis`, by its first rank: ranks that differ along `axis` alone, by
  /// coordinate. Each rank is in exactly one.
  [[nodiscard]] Lines lines(Axis axis) const {
    return combs(world_size(), size(axis), sizes_.stride(axis));
  }

 private:
  MeshShape sizes_;
};

}  // namespace dtrain::mesh
