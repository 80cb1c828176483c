// Creates the process groups of a mesh and holds those of this rank.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "dtrain/comm/world.h"
#include "dtrain/mesh/device_mesh.h"

namespace dtrain::mesh {

/// The groups of a job in addition to those along its axes.
struct MeshSubgroups {
  /// Consecutive dp ranks that share one sharded copy of the state.
  std::int64_t shard_size = 1;
  /// Subgroups of the tp axis that the model communicates in.
  std::vector<Subgroup> tensor = {};
  /// Sets of pp coordinates, ascending, whose stages share parameters. Sets may repeat.
  RankGroups stages = {};
};

/// The purpose of a group; the accessors of MeshGroups document its ranks.
enum class GroupUse {
  world,
  axis,
  pp_gradients,
  shards,
  replicas,
  tensor,
  one_stage,
  gathers,
  stages
};

/// All groups of one purpose. Each rank is in exactly one; with GroupUse::stages, in at most one.
struct GroupKind {
  GroupUse use = GroupUse::world;
  std::string name;      ///< in messages
  Axis axis = {};        ///< the axis they lie along, if any
  RankGroups groups;     ///< the ranks of each
  bool is_axis = false;  ///< each spans the whole axis, so the axis groups are used instead
  Ranks stages{};        ///< the entry of MeshSubgroups::stages
};

/// Lists all groups of a job in creation order: the groups along an axis come before its subgroups.
/// If dp spans all ranks, its group also serves as the world group. on_device: groups have streams,
/// so shard gathers get a group of their own, which need not wait for gradient reductions.
[[nodiscard]] std::vector<GroupKind> group_kinds(const DeviceMesh& mesh,
                                                 const MeshSubgroups& subgroups,
                                                 bool on_device = false);

/// Throws: Error{usage} if the mesh and the world differ in size.
void check_mesh_size(const DeviceMesh& mesh, const comm::World& world);

/// All groups of one rank. Every group exists: if this rank is alone, the group has one rank, and
/// its operations complete at once, send nothing and need no thread.
///
/// Collective: constructed by every rank of the world with the same arguments.
/// Throws:     as check_mesh_size; what World::split throws.
class MeshGroups {
 public:
  MeshGroups(comm::World& world, const DeviceMesh& mesh, const MeshSubgroups& subgroups = {});

  [[nodiscard]] const DeviceMesh& mesh() const { return mesh_; }
  [[nodiscard]] const MeshShape& coordinate() const { return coordinate_; }
  /// All ranks.
  [[nodiscard]] comm::ProcessGroup& world() const { return *of(GroupUse::world).front(); }
  /// The ranks that share this rank's coordinates on the other axes.
  [[nodiscard]] comm::ProcessGroup& along(Axis axis) const {
    return *of(GroupUse::axis)[static_cast<std::size_t>(axis)];
  }

  /// The dp ranks that together hold one sharded copy of the state.
  [[nodiscard]] comm::ProcessGroup& shards() const { return *of(GroupUse::shards).front(); }
  /// The same ranks, for parameter gathers: on a device a separate group, whose stream does not
  /// wait for gradient reductions.
  [[nodiscard]] comm::ProcessGroup& gathers() const { return *of(GroupUse::gathers).front(); }
  /// The dp ranks that hold the same shard as this one.
  [[nodiscard]] comm::ProcessGroup& replicas() const { return *of(GroupUse::replicas).front(); }
  /// This rank's group of each entry of MeshSubgroups::tensor.
  [[nodiscard]] std::span<comm::ProcessGroup* const> tensor_subgroups() const {
    return of(GroupUse::tensor);
  }
  /// The ranks of along(Axis::pp) in a second group, so that gradients need not wait for
  /// activations. Supports sends and receives only.
  [[nodiscard]] comm::ProcessGroup& pp_gradients() const {
    return *of(GroupUse::pp_gradients).front();
  }
  /// The pp ranks in `set`, an entry of MeshSubgroups::stages; a single-rank group if this rank is
  /// not among them.
  [[nodiscard]] comm::ProcessGroup& stages(const Ranks& set) const;

  /// Call counters summed over all groups.
  [[nodiscard]] comm::CallCounters counters() const;
  /// Calls visit(label, group) once for every group of several ranks.
  void for_each(
      const std::function<void(const std::string& label, comm::ProcessGroup& group)>& visit) const;
  /// Returns comm::call_line of each group.
  ///
  /// Threads: any.
  [[nodiscard]] std::string call_lines() const;

 private:
  /// Creates all groups of `kind` and keeps this rank's; returns null if it is in none.
  comm::ProcessGroup* make(comm::World& world, const GroupKind& kind);
  [[nodiscard]] const std::vector<comm::ProcessGroup*>& of(GroupUse use) const {
    return own_[static_cast<std::size_t>(use)];
  }

  DeviceMesh mesh_;
  MeshShape coordinate_;
  std::vector<std::shared_ptr<comm::ProcessGroup>> groups_;  // owns each group once
  std::vector<std::string> labels_;                          // of groups_, for call_lines()
  std::array<std::vector<comm::ProcessGroup*>, 8> own_;      // by GroupUse, except stages
  std::map<Ranks, comm::ProcessGroup*> stages_;              // by set; null: this rank is not in it
};

}  // namespace dtrain::mesh
