#include "dtrain/comm/hier/hier_world.h"

#include <fmt/format.h>

#include <utility>

#include "dtrain/comm/gloo/gloo_groups.h"
#include "dtrain/comm/hier/hier_transport.h"
#include "dtrain/comm/met_world.h"
#include "dtrain/comm/shm/shm_groups.h"
#include "dtrain/comm/shm/shm_world.h"

namespace dtrain::comm {

namespace {

/// A part of a group, as one of its members sees it.
GroupIdentity part_of(const GroupIdentity& group, const std::vector<std::int64_t>& ranks,
                      std::int64_t own) {
  GroupIdentity part{.name = group.name, .rank = own, .world_ranks = {}};
  for (const std::int64_t rank : ranks) {
    part.world_ranks.push_back(group.world_ranks[static_cast<std::size_t>(rank)]);
  }
  return part;
}

class HierWorld final : public MetWorld {
 public:
  HierWorld(const WorldOptions& options, const std::shared_ptr<Rendezvous>& rendezvous,
            std::shared_ptr<ProcessNeighbours> neighbours, std::vector<std::int64_t> host_of_rank)
      : MetWorld(options, rendezvous),
        host_of_rank_(std::move(host_of_rank)),
        shm_(options, rendezvous, std::move(neighbours)),
        gloo_(options, rendezvous) {
    make_control();
  }

  [[nodiscard]] std::string_view backend() const override { return "hier"; }
  [[nodiscard]] at::Tensor allocate(std::int64_t bytes) override { return shm_.allocate(bytes); }

 private:
  std::unique_ptr<Transport> connect(const std::string& key,
                                     const GroupIdentity& identity) override {
    std::vector<std::int64_t> hosts;
    for (const std::int64_t rank : identity.world_ranks) {
      hosts.push_back(host_of_rank_[static_cast<std::size_t>(rank)]);
    }
    const auto grid = grid_of(hosts);
    if (grid && grid->hosts == 1) return shm_.connect(key, identity);
    if (!grid || grid->per_host == 1) return gloo_.connect(key, identity);
    return connect_grid(key, identity, *grid);
  }

  std::unique_ptr<Transport> connect_grid(const std::string& key, const GroupIdentity& identity,
                                          const HostGrid& grid) {
    const std::int64_t host = grid.host(identity.rank);
    const std::int64_t place = grid.place(identity.rank);
    std::vector<std::int64_t> neighbours;
    std::vector<std::int64_t> lane;
    for (std::int64_t p = 0; p < grid.per_host; ++p) neighbours.push_back(grid.rank(host, p));
    for (std::int64_t h = 0; h < grid.hosts; ++h) lane.push_back(grid.rank(h, place));
    HierTransport::Parts parts;
    parts.host =
        shm_.connect(fmt::format("{} on host {}", key, host), part_of(identity, neighbours, place));
    parts.lane =
        gloo_.connect(fmt::format("{} in lane {}", key, place), part_of(identity, lane, host));
    parts.all = gloo_.connect(key, identity);
    const bool is_ordered = options().group.reduction == Reduction::ordered;
    return std::make_unique<HierTransport>(grid, identity.rank, std::move(parts), is_ordered);
  }

  std::vector<std::int64_t> host_of_rank_;
  ShmGroups shm_;
  GlooGroups gloo_;
};

}  // namespace

std::int64_t hier_group_memory(const PlannedGroup& group) {
  if (group.host_of_rank.empty()) return shm_group_memory(group);
  const auto grid = grid_of(group.host_of_rank);
  if (grid && grid->hosts == 1) return shm_group_memory(group);
  if (!grid || grid->per_host == 1) return group_memory("gloo", group);
  return HierTransport::bytes(*grid, group);
}

std::shared_ptr<World> create_hier_world(const WorldOptions& options,
                                         std::shared_ptr<Rendezvous> rendezvous,
                                         std::shared_ptr<ProcessNeighbours> neighbours,
                                         std::vector<std::int64_t> host_of_rank) {
  return std::make_shared<HierWorld>(options, std::move(rendezvous), std::move(neighbours),
                                     std::move(host_of_rank));
}

}  // namespace dtrain::comm
