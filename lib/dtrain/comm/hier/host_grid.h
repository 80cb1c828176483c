// How the ranks of a group lie on hosts. Private to comm.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <optional>
#include <set>
#include <span>

namespace dtrain::comm {

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
[[nodiscard]] inline std::optional<HostGrid> grid_of(std::span<const std::int64_t> host_of_rank) {
  const auto size = static_cast<std::int64_t>(host_of_rank.size());
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

}  // namespace dtrain::comm
