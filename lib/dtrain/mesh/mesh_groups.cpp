#include "dtrain/mesh/mesh_groups.h"

#include <numeric>
#include <vector>

#include "dtrain/base/error.h"

namespace dtrain::mesh {

namespace {

using Lines = std::vector<std::vector<std::int64_t>>;

// Runs of `size` neighbours of each line.
Lines runs_of(const Lines& lines, std::int64_t size) {
  Lines runs;
  for (const auto& line : lines) {
    for (auto first = line.begin(); first != line.end(); first += size) {
      runs.emplace_back(first, first + size);
    }
  }
  return runs;
}

// The ranks in equal places of each line's runs.
Lines across_runs(const Lines& lines, std::int64_t size) {
  Lines across;
  for (const auto& line : lines) {
    for (std::size_t place = 0; place < static_cast<std::size_t>(size); ++place) {
      auto& ranks = across.emplace_back();
      for (std::size_t i = place; i < line.size(); i += static_cast<std::size_t>(size)) {
        ranks.push_back(line[i]);
      }
    }
  }
  return across;
}

Lines all_ranks(std::int64_t count) {
  Lines lines(1, std::vector<std::int64_t>(static_cast<std::size_t>(count)));
  std::iota(lines.front().begin(), lines.front().end(), std::int64_t{0});
  return lines;
}

}  // namespace

void require_fit(const DeviceMesh& mesh, const comm::World& world) {
  if (mesh.world_size() == world.size()) return;
  std::vector<std::string> flags;
  for (const Axis axis : kAxes) flags.push_back(fmt::format("--{}", name_of(axis)));
  base::fail(base::ErrorKind::usage,
             "a mesh of {} wants {} ranks, but {} were started; change one of {}, or start as many",
             mesh.sizes().text(" x "), mesh.world_size(), world.size(), fmt::join(flags, ", "));
}

MeshGroups::MeshGroups(comm::World& world, const DeviceMesh& mesh, const AxisCuts& cuts)
    : mesh_(mesh) {
  require_fit(mesh, world);
  coordinate_ = mesh.coordinate(world.rank());
  world_ = make(world, all_ranks(world.size()), "world");
  for (const Axis axis : kAxes) {
    along_[static_cast<std::size_t>(axis)] = make(world, mesh.lines(axis), name_of(axis));
  }
  pp_gradients_ = make(world, mesh.lines(Axis::pp), "pp gradients");
  shards_ = make_runs(world, Axis::dp, {"shards", cuts.shard_size});
  replicas_ = cuts.shard_size == 1
                  ? &along(Axis::dp)
                  : make(world, across_runs(mesh.lines(Axis::dp), cuts.shard_size), "replicas");
  for (const Subgroup& runs : cuts.tensor) tensor_.push_back(make_runs(world, Axis::tp, runs));
  alone_ = make_runs(world, Axis::pp, {"one stage", 1});
  for (const std::vector<std::int64_t>& set : cuts.stages) make_stages(world, set);
}

// Every rank names every line, in the same order: split is collective over the world.
comm::ProcessGroup* MeshGroups::make(comm::World& world, const Lines& lines,
                                     std::string_view name) {
  comm::ProcessGroup* own = nullptr;
  for (const auto& line : lines) {
    if (auto group = world.split(line, name)) own = groups_.emplace_back(std::move(group)).get();
  }
  return own;
}

comm::ProcessGroup* MeshGroups::make_runs(comm::World& world, Axis axis, const Subgroup& runs) {
  if (runs.size == mesh_.size(axis)) return &along(axis);
  return make(world, runs_of(mesh_.lines(axis), runs.size), runs.name);
}

void MeshGroups::make_stages(comm::World& world, const std::vector<std::int64_t>& set) {
  const bool is_pair_or_more = set.size() > 1 && std::ssize(set) < mesh_.size(Axis::pp);
  if (!is_pair_or_more || stages_.contains(set)) return;
  Lines lines;
  for (const auto& whole : mesh_.lines(Axis::pp)) {
    auto& line = lines.emplace_back();
    for (const std::int64_t stage : set) line.push_back(whole[static_cast<std::size_t>(stage)]);
  }
  comm::ProcessGroup* own = make(world, lines, "stages");
  stages_[set] = own == nullptr ? alone_ : own;
}

comm::ProcessGroup& MeshGroups::stages(const std::vector<std::int64_t>& set) const {
  if (std::ssize(set) == mesh_.size(Axis::pp)) return along(Axis::pp);
  return set.size() == 1 ? *alone_ : *stages_.at(set);
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

}  // namespace dtrain::mesh
