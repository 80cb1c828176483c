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

MeshGroups::MeshGroups(comm::World& world, const DeviceMesh& mesh, std::int64_t shard_size)
    : mesh_(checked(mesh, world)), coordinate_(mesh.coordinate(world.rank())) {
  std::vector<std::int64_t> all(static_cast<std::size_t>(world.size()));
  std::iota(all.begin(), all.end(), std::int64_t{0});
  world_ = world.split(all, "world");
  for (const Axis axis : {Axis::pp, Axis::dp, Axis::tp}) {
    along_[static_cast<std::size_t>(axis)] = own_line(world, mesh.lines(axis), name_of(axis));
  }
  if (shard_size == 1) return;
  const Lines lines = mesh.lines(Axis::dp);
  if (shard_size == mesh.size(Axis::dp)) {
    shards_ = along_[static_cast<std::size_t>(Axis::dp)];
    return;
  }
  shards_ = own_line(world, runs_of(lines, shard_size), "shards");
  replicas_ = own_line(world, across_runs(lines, shard_size), "replicas");
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
  if (replicas_ != nullptr) {
    add(*replicas_);
    add(*shards_);
  }
  return sum;
}

}  // namespace dtrain::mesh
