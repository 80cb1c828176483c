// The grid of ranks: maps each rank to its coordinate on the parallelism axes.
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
using RankGroups = std::vector<Ranks>;

/// Partitions [0, count) into groups of `size` whose members are `stride` apart, ordered by their
/// first member.
[[nodiscard]] RankGroups strided_groups(std::int64_t count, std::int64_t size, std::int64_t stride);

/// Splits an axis into subgroups of `size` consecutive ranks.
struct Subgroup {
  std::string name;       ///< in messages
  std::int64_t size = 1;  ///< ranks per subgroup; divides the axis size
};

/// The ranks of a job as a grid; consecutive ranks are neighbours on the innermost axis. A value
/// type.
class DeviceMesh {
 public:
  /// Throws: Error{usage} if a size is below 1.
  explicit DeviceMesh(const MeshShape& sizes);

  [[nodiscard]] const MeshShape& sizes() const { return sizes_; }
  [[nodiscard]] std::int64_t size(Axis axis) const { return sizes_[axis]; }
  [[nodiscard]] std::int64_t world_size() const { return sizes_.num_ranks(); }

  [[nodiscard]] MeshShape coordinate(std::int64_t rank) const;

  /// Returns the groups along `axis`, ordered by their first rank. A group holds the ranks that
  /// differ on `axis` alone, ordered by coordinate; each rank is in exactly one group.
  [[nodiscard]] RankGroups groups_along(Axis axis) const {
    return strided_groups(world_size(), size(axis), sizes_.stride(axis));
  }

 private:
  MeshShape sizes_;
};

}  // namespace dtrain::mesh
