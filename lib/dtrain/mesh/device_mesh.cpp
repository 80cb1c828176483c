#include "dtrain/mesh/device_mesh.h"

#include "dtrain/base/error.h"

namespace dtrain::mesh {

DeviceMesh::DeviceMesh(const MeshShape& sizes) : sizes_(sizes) {
  for (const Axis axis : kAxes) {
    if (sizes_[axis] < 1) {
      base::fail(base::ErrorKind::usage, "layout.{} is {}; it must be at least 1", name_of(axis),
                 sizes_[axis]);
    }
  }
}

MeshShape DeviceMesh::coordinate(std::int64_t rank) const {
  DTRAIN_CHECK(rank >= 0 && rank < world_size(), "no rank {} in a mesh of {}", rank, world_size());
  MeshShape place;
  for (const Axis axis : kAxes) place[axis] = rank / sizes_.stride(axis) % sizes_[axis];
  return place;
}

std::int64_t DeviceMesh::rank(const MeshShape& coordinate) const {
  std::int64_t rank = 0;
  for (const Axis axis : kAxes) rank += coordinate[axis] * sizes_.stride(axis);
  return rank;
}

Ranks DeviceMesh::line(Axis axis, std::int64_t rank) const {
  const std::int64_t stride = sizes_.stride(axis);
  const std::int64_t first = rank - coordinate(rank)[axis] * stride;
  Ranks ranks;
  for (std::int64_t index = 0; index < size(axis); ++index) ranks.push_back(first + index * stride);
  return ranks;
}

Lines DeviceMesh::lines(Axis axis) const {
  const std::int64_t stride = sizes_.stride(axis);
  Lines result;
  for (std::int64_t first = 0; first < world_size(); ++first) {
    if (first / stride % size(axis) == 0) result.push_back(line(axis, first));
  }
  return result;
}

}  // namespace dtrain::mesh
