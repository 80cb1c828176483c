// The ranks of a job as one launcher sees them.
#pragma once

#include <signal.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "launcher/job.h"
#include "launcher/nodes/placement.h"
#include "launcher/rank.h"

namespace launcher {

/// Those of this node are processes that this launcher has started; those of other nodes are
/// records of what their launchers report to node 0.
///
/// Threads: one.
class JobRanks {
 public:
  explicit JobRanks(const Placement& placement) : placement_(placement) {}

  /// Starts the ranks of this node.
  ///
  /// Throws: as start_rank, after which none of them is left.
  void start(const PreparedJob& job, const sigset_t& signal_mask, const SharedOutput& console,
             LogWriter& logs);

  /// Of all nodes, by index.
  [[nodiscard]] std::vector<Rank>& all() { return ranks_; }
  [[nodiscard]] Rank& at(int index) { return ranks_[static_cast<std::size_t>(index)]; }
  /// Of this node.
  [[nodiscard]] std::span<Rank> own();
  /// A rank of that node by its index; nullptr: there is none.
  [[nodiscard]] Rank* find(std::uint64_t index, int node);

  /// Returns whether a rank runs: of all nodes on node 0, else of this one.
  [[nodiscard]] bool any_running();
  /// Returns whether a process group of the own ranks has processes left.
  [[nodiscard]] bool any_group_running();

  /// Sends a line to an own rank.
  static void tell(const Rank& rank, std::string_view line);
  /// Sends signals, in this order, to the process groups of the own ranks that run. With a line,
  /// they are told that first.
  void signal_groups(std::span<const int> signals, std::string_view line = {});
  void kill();

  /// Takes the ends of processes that ranks have left behind, which nobody else reports. now_ns:
  /// since the start. counts: whether they may stand for a rank's end, as after a stop.
  void reap_orphans(std::int64_t now_ns, bool counts);
  /// From now on such ends count as those of the ranks.
  void take_orphans();

 private:
  void add_remote(const PreparedJob& job, int node);

  const Placement& placement_;
  std::vector<Rank> ranks_;
  std::size_t first_running_ = 0;  // those before it do not run, as any_running() has found
};

}  // namespace launcher
