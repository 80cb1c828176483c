// Stores a launcher's records of all ranks (process, output, progress, exit) in one attempt.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "launcher/local/rank.h"
#include "launcher/nodes/placement.h"

namespace launcher {

/// The records of all ranks of a job, by index. A rank of another node has no process here; node 0
/// updates its record from the reports of that node's launcher.
///
/// Threads: one.
class RankTable {
 public:
  explicit RankTable(const Placement& placement) : placement_(placement) {
    ranks_.reserve(static_cast<std::size_t>(placement.world_size()));
  }

  /// Adds the next rank, by index.
  void add(Rank rank) { ranks_.push_back(std::move(rank)); }

  /// All nodes' ranks, by index.
  [[nodiscard]] std::vector<Rank>& all() { return ranks_; }
  [[nodiscard]] const std::vector<Rank>& all() const { return ranks_; }
  [[nodiscard]] Rank& at(int index) { return ranks_[static_cast<std::size_t>(index)]; }
  /// This node's ranks.
  [[nodiscard]] std::span<Rank> own() {
    const NodePlace& own = placement_.own();
    return std::span(ranks_).subspan(static_cast<std::size_t>(own.first_rank),
                                     static_cast<std::size_t>(own.num_ranks));
  }
  /// Returns the rank with that index if it runs on that node; otherwise nullptr.
  [[nodiscard]] Rank* find(std::uint64_t index, int node) {
    if (index >= ranks_.size() || ranks_[index].node != node) return nullptr;
    return &ranks_[index];
  }

  /// Returns whether a rank runs: on node 0, a rank of any node; on other nodes, one of this node.
  [[nodiscard]] bool any_running() {
    const auto runs = [this](const Rank& rank) {
      return rank.running() && (placement_.node_rank == 0 || rank.node == placement_.node_rank);
    };
    while (first_running_ < ranks_.size() && !runs(ranks_[first_running_])) ++first_running_;
    return first_running_ < ranks_.size();
  }

 private:
  const Placement& placement_;
  std::vector<Rank> ranks_;
  std::size_t first_running_ = 0;  // any_running() has found that those before it have ended
};

}  // namespace launcher
