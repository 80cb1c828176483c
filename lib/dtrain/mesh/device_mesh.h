// Assigns each rank its place on the axes.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace dtrain::mesh {

enum class Axis {
  pp,  ///< pipeline: which blocks
  dp,  ///< data: which samples
  tp,  ///< tensor: which part of each block
};

/// "pp", "dp" or "tp".
[[nodiscard]] std::string_view name_of(Axis axis);

/// One number per axis: a place in the mesh, or its sizes.
struct MeshShape {
  std::int64_t pp = 1;
  std::int64_t dp = 1;
  std::int64_t tp = 1;

  [[nodiscard]] std::int64_t along(Axis axis) const;
  bool operator==(const MeshShape&) const = default;
};

/// The ranks of a job as a grid. tp is innermost (neighbouring ranks, which talk most), then dp,
/// then pp: rank = (pp * dp_size + dp) * tp_size + tp. A value.
class DeviceMesh {
 public:
  /// Throws: Error{usage} if a size is below 1.
  explicit DeviceMesh(const MeshShape& sizes);

  [[nodiscard]] const MeshShape& sizes() const { return sizes_; }
  [[nodiscard]] std::int64_t size(Axis axis) const { return sizes_.along(axis); }
  [[nodiscard]] std::int64_t world_size() const { return sizes_.pp * sizes_.dp * sizes_.tp; }

  [[nodiscard]] MeshShape coordinate(std::int64_t rank) const;
  [[nodiscard]] std::int64_t rank(const MeshShape& coordinate) const;

  /// The ranks that differ from `rank` along `axis` alone, itself included, by coordinate.
  [[nodiscard]] std::vector<std::int64_t> line(Axis axis, std::int64_t rank) const;
  /// Every line along `axis`, by its first rank. Each rank is in exactly one.
  [[nodiscard]] std::vector<std::vector<std::int64_t>> lines(Axis axis) const;

 private:
  MeshShape sizes_;
};

}  // namespace dtrain::mesh
