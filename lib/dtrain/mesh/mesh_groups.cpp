#include "dtrain/mesh/mesh_groups.h"

#include <algorithm>
#include <set>
#include <utility>

#include "dtrain/base/error.h"

namespace dtrain::mesh {

namespace {

// Splits each group of `lines` into subgroups; places: the positions within a line of each subgroup.
RankGroups ranks_at(const RankGroups& lines, const RankGroups& places) {
  RankGroups result;
  for (const Ranks& line : lines) {
    for (const Ranks& positions : places) {
      Ranks& ranks = result.emplace_back();
      for (const std::int64_t position : positions)
        ranks.push_back(line[static_cast<std::size_t>(position)]);
    }
  }
  return result;
}

}  // namespace

void check_mesh_size(const DeviceMesh& mesh, const comm::World& world) {
  if (mesh.world_size() == world.size()) return;
  std::vector<std::string> flags;
  for (const Axis axis : kAxes) flags.push_back(fmt::format("--{}", name_of(axis)));
  base::fail(base::ErrorKind::usage,
             "a mesh of {} needs {} ranks, but {} were started; change one of {}, or the number of "
             "ranks",
             mesh.sizes().text(" x "), mesh.world_size(), world.size(), fmt::join(flags, ", "));
}

std::vector<GroupKind> group_kinds(const DeviceMesh& mesh, const MeshSubgroups& subgroups,
                                   bool on_device) {
  std::vector<GroupKind> kinds;
  for (const Axis axis : kAxes) {
    kinds.push_back({GroupUse::axis, std::string(name_of(axis)), axis, mesh.groups_along(axis)});
  }
  kinds.push_back({GroupUse::world,
                   "world",
                   Axis::dp,
                   {comm::ranks_below(mesh.world_size())},
                   !on_device && mesh.size(Axis::dp) == mesh.world_size()});
  kinds.push_back({GroupUse::pp_gradients, "pp gradients", Axis::pp, mesh.groups_along(Axis::pp)});
  const auto add = [&](GroupUse use, std::string name, Axis axis, const RankGroups& groups) {
    const bool is_axis = std::ssize(groups.front()) == mesh.size(axis);
    kinds.push_back(
        {use, std::move(name), axis, ranks_at(mesh.groups_along(axis), groups), is_axis});
  };
  const std::int64_t data = mesh.size(Axis::dp);
  const std::int64_t shards = subgroups.shard_size;
  add(GroupUse::shards, "shards", Axis::dp, strided_groups(data, shards, 1));
  if (on_device && shards > 1) {
    kinds.push_back({GroupUse::gathers, "gathers", Axis::dp,
                     ranks_at(mesh.groups_along(Axis::dp), strided_groups(data, shards, 1))});
  }
  add(GroupUse::replicas, "replicas", Axis::dp, strided_groups(data, data / shards, shards));
  for (const Subgroup& subgroup : subgroups.tensor) {
    add(GroupUse::tensor, subgroup.name, Axis::tp,
        strided_groups(mesh.size(Axis::tp), subgroup.size, 1));
  }
  add(GroupUse::one_stage, "one stage", Axis::pp, strided_groups(mesh.size(Axis::pp), 1, 1));
  for (const Ranks& set : std::set(subgroups.stages.begin(), subgroups.stages.end())) {
    if (set.size() < 2) continue;
    add(GroupUse::stages, "stages", Axis::pp, {set});
    kinds.back().stages = set;
  }
  return kinds;
}

MeshGroups::MeshGroups(comm::World& world, const DeviceMesh& mesh, const MeshSubgroups& subgroups)
    : mesh_(mesh) {
  check_mesh_size(mesh, world);
  coordinate_ = mesh.coordinate(world.rank());
  for (const GroupKind& kind : group_kinds(mesh, subgroups, !world.device().is_cpu())) {
    comm::ProcessGroup* own = kind.is_axis ? &along(kind.axis) : make(world, kind);
    if (kind.use == GroupUse::stages) {
      stages_[kind.stages] = own;
    } else {
      own_[static_cast<std::size_t>(kind.use)].push_back(own);
    }
  }
  auto& gathers = own_[static_cast<std::size_t>(GroupUse::gathers)];
  if (gathers.empty()) gathers.push_back(&shards());
}

comm::ProcessGroup* MeshGroups::make(comm::World& world, const GroupKind& kind) {
  const bool has_collectives = kind.use != GroupUse::pp_gradients;
  auto group = world.split_subgroups(
      kind.groups, kind.name, has_collectives ? comm::GroupCalls::all : comm::GroupCalls::messages);
  if (group == nullptr) return nullptr;
  const auto own = std::ranges::find_if(kind.groups, [&](const Ranks& ranks) {
    return std::ranges::find(ranks, world.rank()) != ranks.end();
  });
  labels_.push_back(fmt::format("{} of {} ranks from {}", kind.name, own->size(), own->front()));
  return groups_.emplace_back(std::move(group)).get();
}

comm::ProcessGroup& MeshGroups::stages(const Ranks& set) const {
  comm::ProcessGroup* own = set.size() < 2 ? nullptr : stages_.at(set);
  return own == nullptr ? *of(GroupUse::one_stage).front() : *own;
}

comm::CallCounters MeshGroups::counters() const {
  comm::CallCounters sum;
  for (const auto& group : groups_) {
    const comm::CallCounters counters = group->calls().counters();
    sum.calls += counters.calls;
    sum.bytes_sent += counters.bytes_sent;
    sum.wait_seconds += counters.wait_seconds;
  }
  return sum;
}

std::string MeshGroups::call_lines() const {
  std::string lines;
  for_each([&](const std::string& label, const comm::ProcessGroup& group) {
    lines += comm::call_line(group.calls().records(), label, group.awaited());
  });
  return lines;
}

void MeshGroups::for_each(
    const std::function<void(const std::string& label, comm::ProcessGroup& group)>& visit) const {
  for (std::size_t i = 0; i < groups_.size(); ++i) {
    if (groups_[i]->size() > 1) visit(labels_[i], *groups_[i]);
  }
}

}  // namespace dtrain::mesh
