#include "dtrain/config/values/mesh_shape.h"

#include <fmt/format.h>

namespace dtrain::config {

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
