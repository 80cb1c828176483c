// The process groups of a mesh, as one rank sees them.
#pragma once

#include <array>
#include <memory>

#include "dtrain/comm/world.h"
#include "dtrain/mesh/device_mesh.h"

namespace dtrain::mesh {

/// This rank's group along each axis, groups of one included, and the group of all ranks.
///
/// Collective: constructed by every rank of the world with the same mesh.
/// Throws:     Error{usage} if the mesh and the world differ in size; what World::split throws.
class MeshGroups {
 public:
  MeshGroups(comm::World& world, const DeviceMesh& mesh);

  [[nodiscard]] const DeviceMesh& mesh() const { return mesh_; }
  [[nodiscard]] const MeshShape& coordinate() const { return coordinate_; }
  [[nodiscard]] comm::ProcessGroup& world() const { return *world_; }
  /// The ranks that share this rank's coordinates on the other axes.
  [[nodiscard]] comm::ProcessGroup& along(Axis axis) const {
    return *along_[static_cast<std::size_t>(axis)];
  }

 private:
  DeviceMesh mesh_;
  MeshShape coordinate_;
  std::shared_ptr<comm::ProcessGroup> world_;
  std::array<std::shared_ptr<comm::ProcessGroup>, 3> along_;  // by Axis
};

}  // namespace dtrain::mesh
