#include "dtrain/comm/internal/hier/hier_transport.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "dtrain/base/error.h"
#include "dtrain/comm/internal/gloo/gloo_groups.h"
#include "dtrain/comm/internal/gloo/gloo_transport.h"
#include "dtrain/comm/internal/shm/shm_transport.h"
#include "dtrain/comm/reduce.h"

namespace dtrain::comm {
namespace {

/// Calls `call`; `group_rank` translates the ranks of a failure to ranks of the group.
template <typename Call, typename GroupRank>
std::int64_t translated(Call call, GroupRank group_rank) {
  try {
    return call();
  } catch (const TransportFailure& failure) {
    std::vector<std::int64_t> peers;
    for (const std::int64_t peer : failure.peers()) peers.push_back(group_rank(peer));
    throw TransportFailure(failure.cause(), std::move(peers), failure.what());
  }
}

/// A subgroup of a group. own: this rank's index in it.
GroupIdentity part_of(const GroupIdentity& group, const std::vector<std::int64_t>& ranks,
                      std::int64_t own) {
  GroupIdentity part{.name = group.name, .rank = own, .world_ranks = {}};
  for (const std::int64_t rank : ranks) {
    part.world_ranks.push_back(group.world_ranks[static_cast<std::size_t>(rank)]);
  }
  return part;
}

}  // namespace

std::optional<HostGrid> grid_of(std::span<const std::int64_t> host_of_rank) {
  const auto size = std::ssize(host_of_rank);
  std::int64_t per_host = 0;
  while (per_host < size && host_of_rank[static_cast<std::size_t>(per_host)] == host_of_rank[0]) {
    ++per_host;
  }
  if (per_host == 0 || size % per_host != 0) return std::nullopt;
  const HostGrid grid{.hosts = size / per_host, .per_host = per_host};
  std::set<std::int64_t> seen;
  for (std::int64_t host = 0; host < grid.hosts; ++host) {
    const auto of_host = host_of_rank.subspan(static_cast<std::size_t>(grid.rank(host, 0)),
                                              static_cast<std::size_t>(per_host));
    const bool is_new = seen.insert(of_host.front()).second;
    if (!is_new || std::ranges::count(of_host, of_host.front()) != per_host) return std::nullopt;
  }
  return grid;
}

HierTransport::HierTransport(const HostGrid& grid, std::int64_t rank, Parts parts, bool is_ordered)
    : grid_(grid),
      host_(grid.host(rank)),
      place_(grid.place(rank)),
      parts_(std::move(parts)),
      is_ordered_(is_ordered) {
  DTRAIN_CHECK(grid.hosts > 1 && grid.per_host > 1);
}

std::int64_t HierTransport::run(const Operation& operation, const base::Deadline& deadline) {
  return std::visit([&](const auto& call) { return execute(call, deadline); }, operation);
}

std::int64_t HierTransport::run_intra_host(const Operation& operation,
                                           const base::Deadline& deadline) {
  return translated([&] { return parts_.intra_host->run(operation, deadline); },
                    [this](std::int64_t place) { return grid_.rank(host_, place); });
}

std::int64_t HierTransport::run_inter_host(const Operation& operation,
                                           const base::Deadline& deadline) {
  return translated([&] { return parts_.inter_host->run(operation, deadline); },
                    [this](std::int64_t host) { return grid_.rank(host, place_); });
}

bool HierTransport::sums_by_host(const HostGrid& grid, bool is_ordered, bool is_16_bits) {
  return !is_ordered || (grid.keeps_tree_order() && !is_16_bits);
}

bool HierTransport::sums_by_host(at::ScalarType dtype) const {
  return sums_by_host(grid_, is_ordered_, dtype == at::kBFloat16 || dtype == at::kHalf);
}

// The group's rank 0 is also the first of its host.
std::int64_t HierTransport::bytes(const HostGrid& grid, const PlannedGroup& group) {
  const GroupLoad& load = group.load;
  const bool by_host = sums_by_host(grid, group.is_ordered, group.reduces_16_bits);
  const std::int64_t gathered = group.gathered / grid.per_host;  // no memory of the world
  GroupLoad host = load;
  host.size = grid.per_host;
  host.foreign = std::max(by_host ? load.foreign : 0, gathered);
  const std::int64_t added = group.added_over_gloo();
  const GroupLoad inter_host{.size = grid.hosts, .reduced = by_host ? added / grid.per_host : 0};
  const GroupLoad all{.size = load.size, .reduced = by_host ? 0 : added};
  return ShmTransport::bytes(host) + gloo_transport_bytes(inter_host) + gloo_transport_bytes(all) +
         gathered;
}

std::int64_t HierTransport::execute(const AllReduce& call, const base::Deadline& deadline) {
  const auto& [tensor, op] = call;
  if (tensor.numel() == 0) return 0;
  if (!sums_by_host(tensor.scalar_type())) return parts_.all->run(call, deadline);
  std::vector<std::int64_t> counts;
  for (std::int64_t place = 0; place < grid_.per_host; ++place) {
    counts.push_back(slice_begin(tensor.numel(), grid_.per_host, place + 1) -
                     slice_begin(tensor.numel(), grid_.per_host, place));
  }
  const std::int64_t begin = slice_begin(tensor.numel(), grid_.per_host, place_);
  const at::Tensor flat = tensor.view({-1});
  const at::Tensor own = flat.narrow(0, begin, counts[static_cast<std::size_t>(place_)]);
  std::int64_t sent = run_intra_host(AllReduce{flat, op}, deadline);
  sent += run_inter_host(AllReduce{own, op}, deadline);
  return sent + run_intra_host(AllGather{own, PartedTensor(flat, counts)}, deadline);
}

std::int64_t HierTransport::execute(const ReduceScatter& call, const base::Deadline& deadline) {
  const auto& [input, output] = call;
  if (!sums_by_host(input.scalar_type())) return parts_.all->run(call, deadline);
  const at::Tensor blocks = input.view({grid_.hosts, -1});  // what each host's ranks get
  const at::Tensor sums = at::empty({grid_.hosts, output.numel()}, output.options());
  std::int64_t sent = 0;
  for (std::int64_t host = 0; host < grid_.hosts; ++host) {
    sent += run_intra_host(ReduceScatter{blocks[host], sums[host]}, deadline);
  }
  return sent + run_inter_host(ReduceScatter{sums.view({-1}), output}, deadline);
}

std::int64_t HierTransport::execute(const AllGather& call, const base::Deadline& deadline) {
  const PartedTensor& output = call.output;
  std::vector<std::int64_t> counts_by_host;
  std::int64_t total_count = 0;
  for (std::int64_t host = 0; host < grid_.hosts; ++host) {
    counts_by_host.push_back(output.count(grid_.rank(host, place_)));
    total_count += counts_by_host.back();
  }
  const at::Tensor gathered = at::empty({total_count}, call.input.options());
  std::int64_t sent =
      run_inter_host(AllGather{call.input, PartedTensor(gathered, counts_by_host)}, deadline);
  const at::Tensor flat = output.tensor.view({-1});
  std::int64_t taken = 0;
  for (std::int64_t host = 0; host < grid_.hosts; ++host) {
    std::vector<std::int64_t> counts;
    for (std::int64_t place = 0; place < grid_.per_host; ++place) {
      counts.push_back(output.count(grid_.rank(host, place)));
    }
    const std::int64_t begin = output.begins[static_cast<std::size_t>(grid_.rank(host, 0))];
    const std::int64_t end = output.begins[static_cast<std::size_t>(grid_.rank(host + 1, 0))];
    const std::int64_t own = counts_by_host[static_cast<std::size_t>(host)];
    sent += run_intra_host(AllGather{gathered.narrow(0, taken, own),
                                     PartedTensor(flat.narrow(0, begin, end - begin), counts)},
                           deadline);
    taken += own;
  }
  return sent;
}

std::int64_t HierTransport::execute(const AllToAll& call, const base::Deadline& deadline) {
  return parts_.all->run(call, deadline);
}

std::int64_t HierTransport::execute(const Broadcast& call, const base::Deadline& deadline) {
  std::int64_t sent = 0;
  if (grid_.place(call.root) == place_) {
    sent = run_inter_host(Broadcast{call.tensor, grid_.host(call.root)}, deadline);
  }
  return sent + run_intra_host(Broadcast{call.tensor, grid_.place(call.root)}, deadline);
}

std::int64_t HierTransport::execute(const Send& call, const base::Deadline& deadline) {
  if (grid_.host(call.peer) != host_) return parts_.all->run(call, deadline);
  return run_intra_host(Send{call.tensor, grid_.place(call.peer)}, deadline);
}

std::int64_t HierTransport::execute(const Recv& call, const base::Deadline& deadline) {
  if (grid_.host(call.peer) != host_) return parts_.all->run(call, deadline);
  return run_intra_host(Recv{call.tensor, grid_.place(call.peer)}, deadline);
}

std::int64_t HierTransport::execute(const Barrier& call, const base::Deadline& deadline) {
  return parts_.all->run(call, deadline);
}

std::int64_t HierTransport::awaited() const noexcept {
  if (const std::int64_t place = parts_.intra_host->awaited(); place >= 0)
    return grid_.rank(host_, place);
  if (const std::int64_t host = parts_.inter_host->awaited(); host >= 0)
    return grid_.rank(host, place_);
  return parts_.all->awaited();
}

void HierTransport::close(const std::string& reason) noexcept {
  parts_.all->close(reason);
  parts_.inter_host->close(reason);
  parts_.intra_host->close(reason);
}

std::unique_ptr<Transport> connect_hier(const HierGroups& groups, const GroupIdentity& identity) {
  const std::string key = identity.key();
  std::vector<std::int64_t> hosts;
  for (const std::int64_t rank : identity.world_ranks) {
    hosts.push_back(groups.host_of_rank[static_cast<std::size_t>(rank)]);
  }
  const auto grid = grid_of(hosts);
  if (grid && grid->hosts == 1) return connect_shm(*groups.shm, key, identity);
  if (!grid || grid->per_host == 1) return groups.gloo->connect(key, identity);
  const std::int64_t host = grid->host(identity.rank);
  const std::int64_t place = grid->place(identity.rank);
  std::vector<std::int64_t> host_ranks;
  std::vector<std::int64_t> counterparts;
  for (std::int64_t p = 0; p < grid->per_host; ++p) host_ranks.push_back(grid->rank(host, p));
  for (std::int64_t h = 0; h < grid->hosts; ++h) counterparts.push_back(grid->rank(h, place));
  HierTransport::Parts parts;
  parts.intra_host = connect_shm(*groups.shm, fmt::format("{} on host {}", key, host),
                                 part_of(identity, host_ranks, place));
  parts.inter_host = groups.gloo->connect(fmt::format("{} across hosts at place {}", key, place),
                                          part_of(identity, counterparts, host));
  parts.all = groups.gloo->connect(key, identity);
  return std::make_unique<HierTransport>(*grid, identity.rank, std::move(parts), groups.is_ordered);
}

std::int64_t hier_group_memory(const PlannedGroup& group) {
  if (group.host_of_rank.empty()) return shm_group_memory(group);
  const auto grid = grid_of(group.host_of_rank);
  if (grid && grid->hosts == 1) return shm_group_memory(group);
  if (!grid || grid->per_host == 1) return group_memory("gloo", group);
  return HierTransport::bytes(*grid, group);
}

}  // namespace dtrain::comm
