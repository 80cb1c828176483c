// The axes along which a job's ranks lie, and a number for each of them.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>

namespace dtrain::config {

enum class Axis {
  pp,  ///< pipeline: which blocks
  dp,  ///< data: which samples
  tp,  ///< tensor: which part of each block
};

/// From the outermost to the innermost, whose ranks are neighbours and talk most.
inline constexpr std::array kAxes{Axis::pp, Axis::dp, Axis::tp};

/// "pp", "dp" or "tp".
[[nodiscard]] constexpr std::string_view name_of(Axis axis) {
  constexpr std::string_view kNames[]{"pp", "dp", "tp"};  // by Axis
  static_assert(std::size(kNames) == kAxes.size());
  return kNames[static_cast<std::size_t>(axis)];
}

/// One number per axis: the sizes of a mesh, or a place in it.
class MeshShape {
 public:
  /// 1 along each axis that is not given.
  MeshShape(std::initializer_list<std::pair<Axis, std::int64_t>> given = {}) {
    values_.fill(1);
    for (const auto& [axis, value] : given) (*this)[axis] = value;
  }

  std::int64_t& operator[](Axis axis) { return values_[static_cast<std::size_t>(axis)]; }
  std::int64_t operator[](Axis axis) const { return values_[static_cast<std::size_t>(axis)]; }

  /// The ranks of a mesh of these sizes.
  [[nodiscard]] std::int64_t num_ranks() const;
  /// How far apart neighbours along the axis are in a mesh of these sizes: the ranks of all axes
  /// inside it.
  [[nodiscard]] std::int64_t stride(Axis axis) const;
  /// "pp 2, dp 1, tp 4".
  [[nodiscard]] std::string text(std::string_view separator = ", ") const;

  bool operator==(const MeshShape&) const = default;

 private:
  std::array<std::int64_t, kAxes.size()> values_;  // by Axis
};

}  // namespace dtrain::config
