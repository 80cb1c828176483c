// How the ranks of a group lie on hosts. Private to comm.
#pragma once

#include <bit>
#include <cstdint>
#include <optional>
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
  for (std::int64_t rank = 0; rank < size; ++rank) {
    const std::int64_t begin = grid.rank(grid.host(rank), 0);
    const bool is_begin_of_host = rank == begin;
    const bool is_as_begin = host_of_rank[static_cast<std::size_t>(rank)] ==
                             host_of_rank[static_cast<std::size_t>(begin)];
    const bool follows_same = rank > 0 && host_of_rank[static_cast<std::size_t>(rank)] ==
                                              host_of_rank[static_cast<std::size_t>(rank - 1)];
    if (!is_as_begin || (is_begin_of_host && follows_same)) return std::nullopt;
  }
  return grid;
}

}  // namespace dtrain::comm
