// The process groups of a mesh, as one rank sees them.
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

/// The groups of a job beside those along its axes.
struct AxisCuts {
  /// Neighbours on dp that share one copy of the state.
  std::int64_t shard_size = 1;
  /// Neighbours on tp that the model wants to talk to each other alone.
  std::vector<Subgroup> tensor = {};
  /// Sets of pp coordinates, ascending: the stages that share parameters. Sets may repeat.
  Lines stages = {};
};

/// What groups are for; MeshGroups says which ranks they join.
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

/// The groups of one use. Each rank is in one of them or, of a set of stages, possibly in none.
struct GroupKind {
  GroupUse use = GroupUse::world;
  std::string name;      ///< in messages
  Axis axis = {};        ///< that they lie along, if there is one
  Lines lines;           ///< the ranks of each
  bool is_axis = false;  ///< each is the whole axis, whose groups serve
  Ranks stages{};        ///< the set of AxisCuts::stages
};

/// All groups of a job, in the order in which they are made; those along an axis come before its
/// cuts, which divide it. Where dp joins all ranks, its group is the world's, too. on_device: the
/// groups have streams, where two that are used side by side need not wait for each other.
[[nodiscard]] std::vector<GroupKind> group_kinds(const DeviceMesh& mesh, const AxisCuts& cuts,
                                                 bool on_device = false);

/// Throws: Error{usage} if the mesh and the world differ in size.
void require_fit(const DeviceMesh& mesh, const comm::World& world);

/// All groups of one rank. None is ever missing: an axis of one rank, and a cut that leaves this
/// rank alone, have a group of one, whose operations end at once, send nothing and need no thread.
///
/// Collective: constructed by every rank of the world with the same arguments.
/// Throws:     as require_fit; what World::split throws.
class MeshGroups {
 public:
  MeshGroups(comm::World& world, const DeviceMesh& mesh, const AxisCuts& cuts = {});

  [[nodiscard]] const DeviceMesh& mesh() const { return mesh_; }
  [[nodiscard]] const MeshShape& coordinate() const { return coordinate_; }
  /// All ranks.
  [[nodiscard]] comm::ProcessGroup& world() const { return *of(GroupUse::world).front(); }
  /// The ranks that share this rank's coordinates on the other axes.
  [[nodiscard]] comm::ProcessGroup& along(Axis axis) const {
    return *of(GroupUse::axis)[static_cast<std::size_t>(axis)];
  }

  /// The ranks of dp that hold the parts of one copy of the state.
  [[nodiscard]] comm::ProcessGroup& shards() const { return *of(GroupUse::shards).front(); }
  /// The same ranks, for gathers of parameters: on a device a group of its own, whose stream does
  /// not wait for reductions of gradients.
  [[nodiscard]] comm::ProcessGroup& gathers() const { return *of(GroupUse::gathers).front(); }
  /// The ranks of dp that hold the same part as this one.
  [[nodiscard]] comm::ProcessGroup& replicas() const { return *of(GroupUse::replicas).front(); }
  /// By subgroup of AxisCuts::tensor: the one that this rank is in.
  [[nodiscard]] std::span<comm::ProcessGroup* const> tensor_subgroups() const {
    return of(GroupUse::tensor);
  }
  /// The ranks of along(Axis::pp) once more, so that gradients need not wait for activations; for
  /// messages alone.
  [[nodiscard]] comm::ProcessGroup& pp_gradients() const {
    return *of(GroupUse::pp_gradients).front();
  }
  /// The ranks of pp in a set of AxisCuts::stages; this rank alone where it is not among them.
  [[nodiscard]] comm::ProcessGroup& stages(const Ranks& set) const;

  /// The sum over all groups.
  [[nodiscard]] comm::CallCounters counters() const;
  /// Calls visit(label, group) for every group of several ranks, each once.
  void for_each(
      const std::function<void(const std::string& label, comm::ProcessGroup& group)>& visit) const;
  /// comm::call_line of each group.
  ///
  /// Threads: any.
  [[nodiscard]] std::string call_lines() const;

 private:
  /// Makes the groups of all these ranks and keeps this rank's own; null where it is in none.
  comm::ProcessGroup* make(comm::World& world, const GroupKind& kind);
  [[nodiscard]] const std::vector<comm::ProcessGroup*>& of(GroupUse use) const {
    return own_[static_cast<std::size_t>(use)];
  }

  DeviceMesh mesh_;
  MeshShape coordinate_;
  std::vector<std::shared_ptr<comm::ProcessGroup>> groups_;  // each once; the rest points here
  std::vector<std::string> labels_;                          // of groups_, for call_lines()
  std::array<std::vector<comm::ProcessGroup*>, 8> own_;      // by GroupUse, but for stages
  std::map<Ranks, comm::ProcessGroup*> stages_;              // by set; null: this rank is not in it
};

}  // namespace dtrain::mesh
