// Discovers which ranks of a job share a host and can share memory there.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "dtrain/comm/internal/host/host_groups.h"
#include "dtrain/comm/internal/host/segment_exchange.h"
#include "dtrain/comm/internal/rendezvous/rendezvous.h"

namespace dtrain::comm {

/// Facts about its host that a rank sends to the others.
struct HostInfo {
  std::string host;      ///< host_digest() of its host_of_process()
  std::string obstacle;  ///< why it cannot share memory; empty: it can
};

/// Hashes a host's identity to 8 bytes. Hosts with equal digests are distinguished later: their
/// ranks cannot connect to each other's sockets.
[[nodiscard]] std::string host_digest(const std::string& host);

/// Encodes a HostInfo for the store.
[[nodiscard]] std::string packed(const HostInfo& info);

/// Why ranks cannot share memory: the reason of the first rank that cannot, in one line; empty if
/// all can.
[[nodiscard]] std::string rank_obstacle(const std::vector<HostInfo>& hosts_info);

/// The host number of each rank; hosts are numbered in the order of their first ranks.
[[nodiscard]] std::vector<std::int64_t> hosts_of(const std::vector<HostInfo>& hosts_info);

/// Input of discover_hosts().
struct TopologyOptions {
  std::int64_t rank = 0;
  std::int64_t size = 1;  ///< ranks of the job
  Segment::Count count_memory = {};
};

/// Outcome of discover_hosts(). If each rank is on its own host, `obstacle`, `segment` and `member`
/// are empty.
struct HostTopology {
  std::string obstacle;                    ///< why ranks cannot share memory; empty if they can
  std::vector<std::int64_t> host_of_rank;  ///< host number of every rank; empty if unknown
  std::shared_ptr<Segment> segment;
  HostMember member;

  [[nodiscard]] std::int64_t num_hosts() const;
};

/// Determines each rank's host and whether the ranks of a host can share memory.
///
/// Collective: all ranks of the job.
/// Throws:     Error{timeout} or Error{comm} naming a rank that has exited.
[[nodiscard]] HostTopology discover_hosts(const TopologyOptions& options, StoreClient& store,
                                          const base::Deadline& deadline);

/// Maps the memory of the ranks of this host.
///
/// Collective: all ranks of a host.
/// Throws:     as exchange_segments.
[[nodiscard]] std::shared_ptr<ProcessPeerMemory> share_memory(HostTopology topology,
                                                              const base::Deadline& deadline);

}  // namespace dtrain::comm
