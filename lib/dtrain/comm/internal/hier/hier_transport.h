// Groups over several hosts: shared memory within a host, gloo across.
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

/// As many ranks on each host, host after host: rank = host * per_host + place.
struct HostGrid {
  std::int64_t hosts = 1;
  std::int64_t per_host = 1;

  [[nodiscard]] std::int64_t rank(std::int64_t host, std::int64_t place) const {
    return host * per_host + place;
  }
  [[nodiscard]] std::int64_t host(std::int64_t rank) const { return rank / per_host; }
  [[nodiscard]] std::int64_t place(std::int64_t rank) const { return rank % per_host; }
  /// Returns whether the ranks of a host are whole sub-trees of tree_order.h, so that sums over
  /// hosts first give the same bits.
  [[nodiscard]] bool keeps_tree_order() const {
    return std::has_single_bit(static_cast<std::uint64_t>(hosts));
  }
};

/// The grid of a group whose members lie on these hosts (equal numbers: one host), in the order of
/// ranks; none where their order or numbers make none.
[[nodiscard]] std::optional<HostGrid> grid_of(std::span<const std::int64_t> host_of_rank);

/// Each rank has three transports: to the ranks of its host, to the ranks with its place on every
/// host (its lane), and to all.
///
/// A host sends one sum instead of one contribution a rank: its ranks add in shared memory, each
/// lane exchanges its slice, and the host's ranks gather. So an all-reduce sends 2 (h - 1) / h
/// tensors a host over the network, h hosts, instead of as many a rank.
///
/// 16-bit sums and, where HostGrid::keeps_tree_order() does not hold, all sums go to all at once:
/// in tree order they are rounded once, at the end.
///
/// Source: hierarchical all-reduce as in Jia et al., Highly Scalable Deep Learning Training System
///         with Mixed-Precision (2018). Differs: sums keep the order of tree_order.h.
class HierTransport final : public Transport {
 public:
  struct Parts {
    std::unique_ptr<Transport> host;  ///< by place
    std::unique_ptr<Transport> lane;  ///< by host
    std::unique_ptr<Transport> all;   ///< by rank
  };

  /// A grid of several hosts with several ranks each. is_ordered: sums must have the bits of
  /// tree_order.h.
  HierTransport(const HostGrid& grid, std::int64_t rank, Parts parts, bool is_ordered);

  /// Returns the bytes of a rank's three transports, and of the work memory of gathers.
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
  /// Run an operation on one transport; the ranks that a failure blames become those of the group.
  std::int64_t on_host(const Operation& operation, const base::Deadline& deadline);
  std::int64_t on_lane(const Operation& operation, const base::Deadline& deadline);

  HostGrid grid_;
  std::int64_t host_;
  std::int64_t place_;
  Parts parts_;
  bool is_ordered_;
};

/// What the groups of a job are made with whose hosts have several ranks.
struct HierGroups {
  std::vector<std::int64_t> host_of_rank;  ///< by world rank
  bool is_ordered = true;                  ///< Reduction::ordered
  std::shared_ptr<HostGroups> shm;
  std::shared_ptr<GlooGroups> gloo;
};

/// The transport of a group of several.
///
/// Collective: the group.
[[nodiscard]] std::unique_ptr<Transport> connect_hier(const HierGroups& groups,
                                                      const GroupIdentity& identity);

/// group_memory of a group, which may lie on one host or on several.
[[nodiscard]] std::int64_t hier_group_memory(const PlannedGroup& group);

}  // namespace dtrain::comm
