// The process groups of a mesh, as one rank sees them.
#pragma once

#include <array>
#include <memory>

#include "dtrain/comm/world.h"
#include "dtrain/mesh/device_mesh.h"

namespace dtrain::mesh {

/// This rank's group along each axis, groups of one included, and the group of all ranks. The dp
/// axis may be cut once more: into runs of `shard_size` neighbours that share one copy of the
/// state, and across them into replicas, which hold the same part of it.
///
/// Collective: constructed by every rank of the world with the same arguments.
/// Throws:     Error{usage} if the mesh and the world differ in size; what World::split throws.
class MeshGroups {
 public:
  /// shard_size divides the dp axis.
  MeshGroups(comm::World& world, const DeviceMesh& mesh, std::int64_t shard_size = 1);

  [[nodiscard]] const DeviceMesh& mesh() const { return mesh_; }
  [[nodiscard]] const MeshShape& coordinate() const { return coordinate_; }
  [[nodiscard]] comm::ProcessGroup& world() const { return *world_; }
  /// The ranks that share this rank's coordinates on the other axes.
  [[nodiscard]] comm::ProcessGroup& along(Axis axis) const {
    return *along_[static_cast<std::size_t>(axis)];
  }
  /// Null for a shard size of 1.
  [[nodiscard]] comm::ProcessGroup* shards() const { return shards_.get(); }
  /// Null where no other rank holds this rank's part, or all do.
  [[nodiscard]] comm::ProcessGroup* replicas() const { return replicas_.get(); }

  /// Of all groups along axes.
  [[nodiscard]] comm::CallCounters counters() const;

 private:
  DeviceMesh mesh_;
  MeshShape coordinate_;
  std::shared_ptr<comm::ProcessGroup> world_;
  std::array<std::shared_ptr<comm::ProcessGroup>, 3> along_;  // by Axis
  std::shared_ptr<comm::ProcessGroup> shards_;  // the dp axis itself where it is whole
  std::shared_ptr<comm::ProcessGroup> replicas_;
};

}  // namespace dtrain::mesh
