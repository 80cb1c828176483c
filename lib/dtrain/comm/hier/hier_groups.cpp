#include "dtrain/comm/hier/hier_groups.h"

#include <fmt/format.h>

#include <utility>

#include "dtrain/comm/hier/hier_transport.h"

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

}  // namespace

std::unique_ptr<Transport> HierGroups::connect(const GroupIdentity& identity) {
  const std::string key = identity.key();
  std::vector<std::int64_t> hosts;
  for (const std::int64_t rank : identity.world_ranks) {
    hosts.push_back(host_of_rank_[static_cast<std::size_t>(rank)]);
  }
  const auto grid = grid_of(hosts);
  if (grid && grid->hosts == 1) return shm_->connect(key, identity);
  if (!grid || grid->per_host == 1) return gloo_.connect(key, identity);
  const std::int64_t host = grid->host(identity.rank);
  const std::int64_t place = grid->place(identity.rank);
  std::vector<std::int64_t> neighbours;
  std::vector<std::int64_t> lane;
  for (std::int64_t p = 0; p < grid->per_host; ++p) neighbours.push_back(grid->rank(host, p));
  for (std::int64_t h = 0; h < grid->hosts; ++h) lane.push_back(grid->rank(h, place));
  HierTransport::Parts parts;
  parts.host =
      shm_->connect(fmt::format("{} on host {}", key, host), part_of(identity, neighbours, place));
  parts.lane =
      gloo_.connect(fmt::format("{} in lane {}", key, place), part_of(identity, lane, host));
  parts.all = gloo_.connect(key, identity);
  return std::make_unique<HierTransport>(*grid, identity.rank, std::move(parts), is_ordered_);
}

std::int64_t hier_group_memory(const PlannedGroup& group) {
  if (group.host_of_rank.empty()) return shm_group_memory(group);
  const auto grid = grid_of(group.host_of_rank);
  if (grid && grid->hosts == 1) return shm_group_memory(group);
  if (!grid || grid->per_host == 1) return group_memory("gloo", group);
  return HierTransport::bytes(*grid, group);
}

}  // namespace dtrain::comm
