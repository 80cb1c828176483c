#include "dtrain/mesh/device_mesh.h"

#include "dtrain/base/error.h"

namespace dtrain::mesh {

RankGroups strided_groups(std::int64_t count, std::int64_t size, std::int64_t stride) {
  RankGroups groups;
  for (std::int64_t first = 0; first < count; ++first) {
    if (first / stride % size != 0) continue;
    Ranks& places = groups.emplace_back();
    for (std::int64_t i = 0; i < size; ++i) places.push_back(first + i * stride);
  }
  return groups;
}

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

}  // namespace dtrain::mesh
