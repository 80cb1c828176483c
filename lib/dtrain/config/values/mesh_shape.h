// Defines the axes of a job's device mesh, and MeshShape, which holds one number per axis.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>

namespace dtrain::config {

/// An axis of parallelism, and what an index on it selects.
enum class Axis {
  pp,  ///< pipeline: which blocks
  dp,  ///< data: which samples
  tp,  ///< tensor: which part of each block
};

/// From the outermost to the innermost axis, whose neighbouring ranks communicate most.
inline constexpr std::array kAxes{Axis::pp, Axis::dp, Axis::tp};

/// "pp", "dp" or "tp".
[[nodiscard]] constexpr std::string_view name_of(Axis axis) {
  constexpr std::string_view kNames[]{"pp", "dp", "tp"};  // by Axis
  static_assert(std::size(kNames) == kAxes.size());
  return kNames[static_cast<std::size_t>(axis)];
}

/// One number per axis: the sizes of a mesh, or a coordinate in it.
class MeshShape {
 public:
  /// Axes that are not given are 1.
  MeshShape(std::initializer_list<std::pair<Axis, std::int64_t>> given = {}) {
    values_.fill(1);
    for (const auto& [axis, value] : given) (*this)[axis] = value;
  }

  std::int64_t& operator[](Axis axis) { return values_[static_cast<std::size_t>(axis)]; }
  std::int64_t operator[](Axis axis) const { return values_[static_cast<std::size_t>(axis)]; }

  /// The product of all sizes.
  [[nodiscard]] std::int64_t num_ranks() const;
  /// The difference in rank of neighbours along the axis: the product of the sizes of inner axes.
  [[nodiscard]] std::int64_t stride(Axis axis) const;
  /// "pp 2, dp 1, tp 4".
  [[nodiscard]] std::string text(std::string_view separator = ", ") const;

  bool operator==(const MeshShape&) const = default;

 private:
  std::array<std::int64_t, kAxes.size()> values_;  // by Axis
};

}  // namespace dtrain::config
