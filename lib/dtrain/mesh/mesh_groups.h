// The process groups of a mesh, as one rank sees them.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
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
  std::vector<std::vector<std::int64_t>> stages = {};
};

/// Throws: Error{usage} if the mesh and the world differ in size.
void require_fit(const DeviceMesh& mesh, const comm::World& world);

/// All groups of one rank. None is ever missing: an axis of one rank, and a cut that leaves this
/// rank alone, have a group of one, whose operations end at once, send nothing and need no thread.
///
/// Collective: constructed by every rank of the world with the same arguments.
/// Throws:     as require_fit; what World::split throws.
class MeshGroups {
 public:
  /// The sizes of runs divide their axes.
  MeshGroups(comm::World& world, const DeviceMesh& mesh, const AxisCuts& cuts = {});

  [[nodiscard]] const DeviceMesh& mesh() const { return mesh_; }
  [[nodiscard]] const MeshShape& coordinate() const { return coordinate_; }
  /// All ranks.
  [[nodiscard]] comm::ProcessGroup& world() const { return *world_; }
  /// The ranks that share this rank's coordinates on the other axes.
  [[nodiscard]] comm::ProcessGroup& along(Axis axis) const {
    return *along_[static_cast<std::size_t>(axis)];
  }

  /// The ranks of dp that hold the parts of one copy of the state.
  [[nodiscard]] comm::ProcessGroup& shards() const { return *shards_; }
  /// The ranks of dp that hold the same part as this one.
  [[nodiscard]] comm::ProcessGroup& replicas() const { return *replicas_; }
  /// By subgroup of AxisCuts::tensor: the one that this rank is in.
  [[nodiscard]] std::span<comm::ProcessGroup* const> tensor_subgroups() const { return tensor_; }
  /// The ranks of along(Axis::pp) once more, so that gradients need not wait for activations.
  [[nodiscard]] comm::ProcessGroup& pp_gradients() const { return *pp_gradients_; }
  /// The ranks of pp in a set of AxisCuts::stages; this rank alone where it is not among them.
  [[nodiscard]] comm::ProcessGroup& stages(const std::vector<std::int64_t>& set) const;

  /// The sum over all groups.
  [[nodiscard]] comm::CallCounters counters() const;

 private:
  using Lines = std::vector<std::vector<std::int64_t>>;

  /// Makes the groups of all these ranks and keeps this rank's own; null where it is in none.
  comm::ProcessGroup* make(comm::World& world, const Lines& lines, std::string_view name);
  comm::ProcessGroup* make_runs(comm::World& world, Axis axis, const Subgroup& runs);
  void make_stages(comm::World& world, const std::vector<std::int64_t>& set);

  DeviceMesh mesh_;
  MeshShape coordinate_;
  std::vector<std::shared_ptr<comm::ProcessGroup>> groups_;  // each once; the rest points here
  comm::ProcessGroup* world_;
  std::array<comm::ProcessGroup*, kAxes.size()> along_{};  // by Axis
  comm::ProcessGroup* pp_gradients_;
  comm::ProcessGroup* shards_;
  comm::ProcessGroup* replicas_;
  std::vector<comm::ProcessGroup*> tensor_;  // by subgroup
  comm::ProcessGroup* alone_;
  std::map<std::vector<std::int64_t>, comm::ProcessGroup*> stages_;
};

}  // namespace dtrain::mesh
