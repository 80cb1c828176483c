#include "dtrain/comm/internal/host/host_topology.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <string_view>
#include <utility>

#include "dtrain/base/error.h"
#include "dtrain/base/host/process.h"
#include "dtrain/base/text/text.h"
#include "dtrain/net/message.h"
#include "dtrain/net/proof.h"

namespace dtrain::comm {

namespace {

// Half of a process's address space (128 TiB), which all segments together may take.
constexpr std::int64_t kAddressSpace = std::int64_t{1} << 46;

std::int64_t limit_of(decltype(RLIMIT_AS) resource) {
  rlimit limit{};
  const bool limited = ::getrlimit(resource, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
  return limited ? static_cast<std::int64_t>(limit.rlim_cur)
                 : std::numeric_limits<std::int64_t>::max();
}

/// The largest segment size at which a process can map the segments of all ranks of its host.
std::int64_t max_segment_bytes(std::int64_t num_ranks) {
  const std::int64_t space = std::min(kAddressSpace, limit_of(RLIMIT_AS) / 2);  // half for the rest
  return std::min(space / num_ranks, limit_of(RLIMIT_FSIZE));
}

constexpr const char* kMalformedHostInfo = "a rank sent malformed host information: \"{}\"";

HostInfo unpacked(const std::string& text) {
  net::MessageReader reader(text);
  HostInfo info{.host = reader.short_text(), .obstacle = base::printable(reader.short_text())};
  if (!reader.is_whole())
    base::fail(base::ErrorKind::comm, kMalformedHostInfo, base::printable(text, 80));
  return info;
}

/// Collects this rank's host information and opens its listening socket.
HostInfo own_info(const TopologyOptions& options, HostTopology& topology) {
  HostInfo info;
  try {
    info.host = host_digest(base::host_of_process());
    // Any rank may turn out to be its host's leader.
    topology.member.listener = open_listen_socket(options.rank);
  } catch (const base::Error& error) {
    info.obstacle = error.what();
  }
  return info;
}

/// Finds the ranks of this host and the name of their leader's socket, which the leader publishes
/// unless it is alone.
void find_host_leader(const TopologyOptions& options, StoreClient& store, HostTopology& topology,
                      const base::Deadline& deadline) {
  HostMember& member = topology.member;
  const auto& hosts = topology.host_of_rank;
  member.rank = options.rank;
  const std::int64_t own = hosts[static_cast<std::size_t>(options.rank)];
  for (std::int64_t rank = 0; rank < options.size; ++rank) {
    if (hosts[static_cast<std::size_t>(rank)] == own) member.ranks.push_back(rank);
  }
  const std::int64_t first = member.ranks.front();
  const bool has_visitors = first == options.rank && member.ranks.size() > 1;
  if (!has_visitors) member.listener = {};
  const auto names =
      store_all_gather(store, "first ranks", options.size, member.listener.name, deadline);
  member.socket_name = names[static_cast<std::size_t>(first)];
}

std::string cannot_share(std::int64_t rank, std::string_view reason) {
  return fmt::format("rank {} cannot share memory: {}", rank, reason);
}

/// Creates this rank's segment. Returns why that failed; empty on success.
std::string make_segment(const TopologyOptions& options, HostTopology& topology) {
  try {
    topology.segment = std::make_shared<Segment>(
        max_segment_bytes(std::ssize(topology.member.ranks)), options.count_memory);
    return {};
  } catch (const base::Error& error) {
    return cannot_share(options.rank, error.what());
  }
}

/// Verifies the host: boot ids may collide, but only ranks of one host reach the leader's socket.
std::string connect_to_leader(std::int64_t rank, HostTopology& topology) {
  const std::int64_t first = topology.member.ranks.front();
  if (rank == first) return {};
  ConnectResult reached = try_connect(topology.member.socket_name);
  topology.member.leader_connection = std::move(reached.connection);
  if (reached.is_same_host) return {};
  return fmt::format(
      "ranks {} and {} are on different hosts that have the same boot id (virtual machines cloned "
      "from one snapshot?)",
      first, rank);
}

/// The first obstacle that any rank reports; empty if there is none.
std::string first_obstacle(const TopologyOptions& options, StoreClient& store,
                           const std::string& own, const base::Deadline& deadline) {
  for (const auto& value : store_all_gather(store, "one host", options.size, own, deadline)) {
    if (!value.empty()) return base::printable(value);
  }
  return {};
}

}  // namespace

std::string host_digest(const std::string& host) {
  constexpr std::size_t kBytes = 8;
  return net::hmac_sha256("host", host).substr(0, kBytes);
}

// Equal for all ranks of a host, so that the store sends it once.
std::string packed(const HostInfo& info) {
  return net::MessageWriter().short_text(info.host).short_text(info.obstacle).bytes();
}

std::string rank_obstacle(const std::vector<HostInfo>& hosts_info) {
  for (std::size_t rank = 0; rank < hosts_info.size(); ++rank) {
    if (!hosts_info[rank].obstacle.empty()) {
      return cannot_share(static_cast<std::int64_t>(rank), hosts_info[rank].obstacle);
    }
  }
  return {};
}

std::vector<std::int64_t> hosts_of(const std::vector<HostInfo>& hosts_info) {
  std::vector<std::int64_t> hosts;
  std::vector<std::string> names;
  for (const HostInfo& info : hosts_info) {
    const auto known = std::ranges::find(names, info.host);
    hosts.push_back(known - names.begin());
    if (known == names.end()) names.push_back(info.host);
  }
  return hosts;
}

std::int64_t HostTopology::num_hosts() const {
  return host_of_rank.empty() ? 0 : *std::ranges::max_element(host_of_rank) + 1;
}

HostTopology discover_hosts(const TopologyOptions& options, StoreClient& store,
                            const base::Deadline& deadline) {
  HostTopology topology;
  const HostInfo info = own_info(options, topology);
  std::vector<HostInfo> hosts_info;
  for (const auto& value :
       store_all_gather(store, "shared memory", options.size, packed(info), deadline)) {
    hosts_info.push_back(unpacked(value));
  }
  topology.obstacle = rank_obstacle(hosts_info);
  if (!topology.obstacle.empty()) return topology;
  topology.host_of_rank = hosts_of(hosts_info);
  if (options.size > 1 && topology.num_hosts() == options.size) return topology;
  find_host_leader(options, store, topology, deadline);
  std::string own = connect_to_leader(options.rank, topology);
  if (own.empty()) own = make_segment(options, topology);
  topology.obstacle = first_obstacle(options, store, own, deadline);
  return topology;
}

std::shared_ptr<ProcessPeerMemory> share_memory(HostTopology topology,
                                                const base::Deadline& deadline) {
  return std::make_shared<ProcessPeerMemory>(std::move(topology.member),
                                             std::move(topology.segment), deadline);
}

}  // namespace dtrain::comm
