#include "dtrain/config/mesh_shape.h"

#include <fmt/format.h>

namespace dtrain::config {

std::string_view name_of(Axis axis) {
  constexpr std::string_view kNames[]{"pp", "dp", "tp"};  // by Axis
  static_assert(std::size(kNames) == kAxes.size());
  return kNames[static_cast<std::size_t>(axis)];
}

std::int64_t MeshShape::num_ranks() const { return stride(kAxes.front()) * values_.front(); }

std::int64_t MeshShape::stride(Axis axis) const {
  std::int64_t ranks = 1;
  for (const Axis inside : kAxes) {
    if (inside > axis) ranks *= (*this)[inside];
  }
  return ranks;
}

std::string MeshShape::text(std::string_view separator) const {
  std::string text;
  for (const Axis axis : kAxes) {
    text += fmt::format("{}{} {}", text.empty() ? "" : separator, name_of(axis), (*this)[axis]);
  }
  return text;
}

}  // namespace dtrain::config
