#include "dtrain/mesh/mesh_groups.h"

#include <numeric>
#include <vector>

#include "dtrain/base/error.h"

namespace dtrain::mesh {

namespace {

std::shared_ptr<comm::ProcessGroup> own_line(comm::World& world, const DeviceMesh& mesh,
                                             Axis axis) {
  std::shared_ptr<comm::ProcessGroup> own;
  // Every rank names every line, in the same order: split is collective over the world.
  for (const auto& line : mesh.lines(axis)) {
    if (auto group = world.split(line, name_of(axis))) own = std::move(group);
  }
  return own;
}

const DeviceMesh& checked(const DeviceMesh& mesh, const comm::World& world) {
  if (mesh.world_size() != world.size()) {
    base::fail(base::ErrorKind::usage,
               "a mesh of pp {} x dp {} x tp {} wants {} ranks, but {} were started; change "
               "--pp, --dp or --tp, or start as many",
               mesh.sizes().pp, mesh.sizes().dp, mesh.sizes().tp, mesh.world_size(), world.size());
  }
  return mesh;
}

}  // namespace

MeshGroups::MeshGroups(comm::World& world, const DeviceMesh& mesh)
    : mesh_(checked(mesh, world)), coordinate_(mesh.coordinate(world.rank())) {
  std::vector<std::int64_t> all(static_cast<std::size_t>(world.size()));
  std::iota(all.begin(), all.end(), std::int64_t{0});
  world_ = world.split(all, "world");
  for (const Axis axis : {Axis::pp, Axis::dp, Axis::tp}) {
    along_[static_cast<std::size_t>(axis)] = own_line(world, mesh, axis);
  }
}

}  // namespace dtrain::mesh
