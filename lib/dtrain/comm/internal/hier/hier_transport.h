// Hierarchical collectives over several hosts: shared memory within a host, gloo between hosts.
#pragma once

#include <bit>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "dtrain/comm/create_world.h"
#include "dtrain/comm/queued_group.h"

namespace dtrain::comm {

class GlooGroups;
class HostGroups;

/// A group with equally many ranks on each host, host by host: rank = host * per_host + place,
/// where `place` is the rank's index within its host.
struct HostGrid {
  std::int64_t hosts = 1;
  std::int64_t per_host = 1;

  [[nodiscard]] std::int64_t rank(std::int64_t host, std::int64_t place) const {
    return host * per_host + place;
  }
  [[nodiscard]] std::int64_t host(std::int64_t rank) const { return rank / per_host; }
  [[nodiscard]] std::int64_t place(std::int64_t rank) const { return rank % per_host; }
  /// Returns whether each host's ranks form a complete sub-tree of tree_order.h, so that summing
  /// within hosts first gives the same bits.
  [[nodiscard]] bool keeps_tree_order() const {
    return std::has_single_bit(static_cast<std::uint64_t>(hosts));
  }
};

/// The grid of a group, from the host number of each rank; empty if the ranks do not form a grid.
[[nodiscard]] std::optional<HostGrid> grid_of(std::span<const std::int64_t> host_of_rank);

/// Combines three transports: to the ranks of this host, to the ranks with this rank's place on
/// every host, and to all ranks.
///
/// The ranks of a host sum in shared memory, each rank then reduces one slice with its counterparts
/// on the other hosts, and the host's ranks gather the slices. An all-reduce over h hosts thus
/// sends 2 (h - 1) / h times the tensor's size over the network per host, rather than per rank.
///
/// Two kinds of ordered sums use the transport to all ranks: 16-bit sums, which must be rounded
/// only once, at the end, and sums on grids without HostGrid::keeps_tree_order().
///
/// Source: hierarchical all-reduce as in Jia et al., Highly Scalable Deep Learning Training System
///         with Mixed-Precision (2018). Differs: sums keep the order of tree_order.h.
class HierTransport final : public Transport {
 public:
  struct Parts {
    std::unique_ptr<Transport> intra_host;  ///< ranked by place
    std::unique_ptr<Transport> inter_host;  ///< ranked by host
    std::unique_ptr<Transport> all;         ///< ranked as the group
  };

  /// grid: several hosts with several ranks each. is_ordered: sums must follow tree_order.h.
  HierTransport(const HostGrid& grid, std::int64_t rank, Parts parts, bool is_ordered);

  /// Bytes of a rank's three transports, and of the temporary memory of gathers.
  [[nodiscard]] static std::int64_t bytes(const HostGrid& grid, const PlannedGroup& group);

  std::int64_t run(const Operation& operation, const base::Deadline& deadline) override;
  [[nodiscard]] std::int64_t awaited() const noexcept override;
  void close(const std::string& reason) noexcept override;

 private:
  std::int64_t execute(const AllReduce& call, const base::Deadline& deadline);
  std::int64_t execute(const ReduceScatter& call, const base::Deadline& deadline);
  std::int64_t execute(const AllGather& call, const base::Deadline& deadline);
  std::int64_t execute(const AllToAll& call, const base::Deadline& deadline);
  std::int64_t execute(const Broadcast& call, const base::Deadline& deadline);
  std::int64_t execute(const Send& call, const base::Deadline& deadline);
  std::int64_t execute(const Recv& call, const base::Deadline& deadline);
  std::int64_t execute(const Barrier& call, const base::Deadline& deadline);

  [[nodiscard]] static bool sums_by_host(const HostGrid& grid, bool is_ordered, bool is_16_bits);
  [[nodiscard]] bool sums_by_host(at::ScalarType dtype) const;
  /// Run an operation on one transport, and translate the ranks of a failure to the group's.
  std::int64_t run_intra_host(const Operation& operation, const base::Deadline& deadline);
  std::int64_t run_inter_host(const Operation& operation, const base::Deadline& deadline);

  HostGrid grid_;
  std::int64_t host_;
  std::int64_t place_;
  Parts parts_;
  bool is_ordered_;
};

/// Inputs of connect_hier().
struct HierGroups {
  std::vector<std::int64_t> host_of_rank;  ///< by world rank
  bool is_ordered = true;                  ///< Reduction::ordered
  std::shared_ptr<HostGroups> shm;
  std::shared_ptr<GlooGroups> gloo;
};

/// Connects a group of several ranks.
///
/// Collective: the group.
[[nodiscard]] std::unique_ptr<Transport> connect_hier(const HierGroups& groups,
                                                      const GroupIdentity& identity);

/// group_memory() for a group on one or several hosts.
[[nodiscard]] std::int64_t hier_group_memory(const PlannedGroup& group);

}  // namespace dtrain::comm
