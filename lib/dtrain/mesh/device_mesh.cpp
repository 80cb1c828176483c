#include "dtrain/mesh/device_mesh.h"

#include "dtrain/base/check.h"

namespace dtrain::mesh {

std::string_view name_of(Axis axis) {
  switch (axis) {
    case Axis::pp:
      return "pp";
    case Axis::dp:
      return "dp";
    case Axis::tp:
      break;
  }
  return "tp";
}

std::int64_t MeshShape::along(Axis axis) const {
  switch (axis) {
    case Axis::pp:
      return pp;
    case Axis::dp:
      return dp;
    case Axis::tp:
      break;
  }
  return tp;
}

DeviceMesh::DeviceMesh(const MeshShape& sizes) : sizes_(sizes) {
  for (const Axis axis : {Axis::pp, Axis::dp, Axis::tp}) {
    if (sizes_.along(axis) < 1) {
      base::fail(base::ErrorKind::usage, "layout.{} is {}; it must be at least 1", name_of(axis),
                 sizes_.along(axis));
    }
  }
}

MeshShape DeviceMesh::coordinate(std::int64_t rank) const {
  DTRAIN_CHECK(rank >= 0 && rank < world_size(), "no rank {} in a mesh of {}", rank, world_size());
  return {.pp = rank / (sizes_.tp * sizes_.dp),
          .dp = rank / sizes_.tp % sizes_.dp,
          .tp = rank % sizes_.tp};
}

std::int64_t DeviceMesh::rank(const MeshShape& coordinate) const {
  return (coordinate.pp * sizes_.dp + coordinate.dp) * sizes_.tp + coordinate.tp;
}

std::vector<std::int64_t> DeviceMesh::line(Axis axis, std::int64_t rank) const {
  MeshShape place = coordinate(rank);
  std::int64_t& moving = axis == Axis::pp ? place.pp : axis == Axis::dp ? place.dp : place.tp;
  std::vector<std::int64_t> ranks;
  for (moving = 0; moving < size(axis); ++moving) ranks.push_back(this->rank(place));
  return ranks;
}

std::vector<std::vector<std::int64_t>> DeviceMesh::lines(Axis axis) const {
  std::vector<std::vector<std::int64_t>> result;
  for (std::int64_t first = 0; first < world_size(); ++first) {
    if (coordinate(first).along(axis) == 0) result.push_back(line(axis, first));
  }
  return result;
}

}  // namespace dtrain::mesh
