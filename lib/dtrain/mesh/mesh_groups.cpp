#include "dtrain/mesh/mesh_groups.h"

#include <numeric>
#include <vector>

#include "dtrain/base/error.h"

namespace dtrain::mesh {

namespace {

using Lines = std::vector<std::vector<std::int64_t>>;

std::shared_ptr<comm::ProcessGroup> own_line(comm::World& world, const Lines& lines,
                                             std::string_view name) {
  std::shared_ptr<comm::ProcessGroup> own;
  // Every rank names every line, in the same order: split is collective over the world.
  for (const auto& line : lines) {
    if (auto group = world.split(line, name)) own = std::move(group);
  }
  return own;
}

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

MeshGroups::MeshGroups(comm::World& world, const DeviceMesh& mesh, const AxisCuts& cuts)
    : mesh_(checked(mesh, world)), coordinate_(mesh.coordinate(world.rank())) {
  std::vector<std::int64_t> all(static_cast<std::size_t>(world.size()));
  std::iota(all.begin(), all.end(), std::int64_t{0});
  world_ = world.split(all, "world");
  for (const Axis axis : {Axis::pp, Axis::dp, Axis::tp}) {
    along_[static_cast<std::size_t>(axis)] = own_line(world, mesh.lines(axis), name_of(axis));
  }
  const bool is_pipeline = mesh.size(Axis::pp) > 1;
  pp_gradients_ = is_pipeline ? own_line(world, mesh.lines(Axis::pp), "pp gradients")
                              : along_[static_cast<std::size_t>(Axis::pp)];
  shards_ = runs_along(world, Axis::dp, cuts.shard_size, "shards");
  head_ = runs_along(world, Axis::tp, cuts.head_size, "head");
  if (cuts.shard_size == 1 || cuts.shard_size == mesh.size(Axis::dp)) return;
  replicas_ = own_line(world, across_runs(mesh.lines(Axis::dp), cuts.shard_size), "replicas");
}

std::shared_ptr<comm::ProcessGroup> MeshGroups::runs_along(comm::World& world, Axis axis,
                                                           std::int64_t size,
                                                           std::string_view name) const {
  if (size == 1) return nullptr;
  if (size == mesh_.size(axis)) return along_[static_cast<std::size_t>(axis)];
  return own_line(world, runs_of(mesh_.lines(axis), size), name);
}

comm::ProcessGroup* MeshGroups::group_of_stages(comm::World& world,
                                                const std::vector<std::int64_t>& stages) {
  if (static_cast<std::int64_t>(stages.size()) == mesh_.size(Axis::pp)) return &along(Axis::pp);
  if (const auto known = of_stages_.find(stages); known != of_stages_.end()) {
    return known->second.get();
  }
  Lines lines;
  for (const auto& whole : mesh_.lines(Axis::pp)) {
    auto& line = lines.emplace_back();
    for (const std::int64_t stage : stages) line.push_back(whole[static_cast<std::size_t>(stage)]);
  }
  return (of_stages_[stages] = own_line(world, lines, "stages")).get();
}

comm::CallCounters MeshGroups::counters() const {
  comm::CallCounters sum;
  const auto add = [&sum](const comm::ProcessGroup& group) {
    const comm::CallCounters counters = group.calls().counters();
    sum.calls += counters.calls;
    sum.bytes_sent += counters.bytes_sent;
    sum.wait_seconds += counters.wait_seconds;
  };
  for (const auto& group : along_) add(*group);
  if (mesh_.size(Axis::pp) > 1) add(*pp_gradients_);
  if (replicas_ != nullptr) {
    add(*replicas_);
    add(*shards_);
  }
  if (head_ != nullptr && head_ != along_[static_cast<std::size_t>(Axis::tp)]) add(*head_);
  for (const auto& [stages, group] : of_stages_) {
    if (group != nullptr) add(*group);
  }
  return sum;
}

}  // namespace dtrain::mesh
