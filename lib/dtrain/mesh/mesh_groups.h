// The process groups of a mesh, as one rank sees them.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <string_view>
#include <vector>

#include "dtrain/comm/world.h"
#include "dtrain/mesh/device_mesh.h"

namespace dtrain::mesh {

/// Runs of neighbours on an axis that form groups of their own.
struct AxisCuts {
  std::int64_t shard_size = 1;  ///< of dp: ranks that share one copy of the state
  std::int64_t head_size = 1;   ///< of tp: ranks that share the neurons of a head
};

/// This rank's group along each axis, groups of one included, and the group of all ranks. The dp
/// axis may be cut once more: into runs of shard_size neighbours that share one copy of the state,
/// and across them into replicas, which hold the same part of it. Along pp there are two groups of
/// the same ranks, so that gradients need not wait for activations.
///
/// Collective: constructed by every rank of the world with the same arguments.
/// Throws:     Error{usage} if the mesh and the world differ in size; what World::split throws.
class MeshGroups {
 public:
  /// Each cut divides its axis.
  MeshGroups(comm::World& world, const DeviceMesh& mesh, const AxisCuts& cuts = {});

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

  /// Null for a head size of 1.
  [[nodiscard]] comm::ProcessGroup* head() const { return head_.get(); }
  /// As along(Axis::pp), once more.
  [[nodiscard]] comm::ProcessGroup& pp_gradients() const { return *pp_gradients_; }

  /// Makes the group of those ranks of this rank's pp axis that have these coordinates, ascending;
  /// null where this rank is not among them. Kept here.
  ///
  /// Collective: over the world.
  [[nodiscard]] comm::ProcessGroup* group_of_stages(comm::World& world,
                                                    const std::vector<std::int64_t>& stages);

  /// Returns the sum over all groups along axes.
  [[nodiscard]] comm::CallCounters counters() const;

 private:
  /// The run of `size` neighbours along an axis that this rank is in; null for a size of 1.
  [[nodiscard]] std::shared_ptr<comm::ProcessGroup> runs_along(comm::World& world, Axis axis,
                                                               std::int64_t size,
                                                               std::string_view name) const;

  DeviceMesh mesh_;
  MeshShape coordinate_;
  std::shared_ptr<comm::ProcessGroup> world_;
  std::array<std::shared_ptr<comm::ProcessGroup>, 3> along_;  // by Axis
  std::shared_ptr<comm::ProcessGroup> shards_;  // the dp axis itself where it is whole
  std::shared_ptr<comm::ProcessGroup> replicas_;
  std::shared_ptr<comm::ProcessGroup> head_;  // the tp axis itself where it is whole
  std::shared_ptr<comm::ProcessGroup> pp_gradients_;
  std::map<std::vector<std::int64_t>, std::shared_ptr<comm::ProcessGroup>> of_stages_;
};

}  // namespace dtrain::mesh
