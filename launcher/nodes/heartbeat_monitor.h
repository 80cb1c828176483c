// Detects launchers of other nodes that have been silent for too long.
#pragma once

#include <chrono>
#include <map>
#include <optional>

#include "launcher/clocks.h"

namespace launcher {

/// Why a launcher counts as lost: it closed its connection (closed), or exceeded its silence limit
/// while its ranks ran (silent) or before they ran (never_started).
enum class NodeLoss { closed, silent, never_started };

/// Limits on the time for which another launcher may send nothing.
struct SilenceLimits {
  std::chrono::duration<double> running{10.0};
  /// While it starts its ranks: meanwhile it reads nothing, and many programs take long to load.
  std::chrono::duration<double> starting{600.0};
};

/// Measures how long each other node's launcher has been silent, and compares this time with the
/// limits. All received data counts as a heartbeat. The time for which this process is stopped does not
/// count.
///
/// Threads: one.
class HeartbeatMonitor {
 public:
  explicit HeartbeatMonitor(SilenceLimits limits = {}) : limits_(limits) {}

  [[nodiscard]] const SilenceLimits& limits() const { return limits_; }

  /// Restarts the node's silence. The first call adds the node.
  void heard(int node) { nodes_[node].heard = clock_.now(); }
  /// Restarts the silence of all nodes.
  void restart();
  /// Records that a node's ranks run in this attempt.
  ///
  /// REQUIRES: the node has been added.
  void ranks_started(int node, int attempt);
  /// Returns silent or never_started if the node has exceeded its limit in this attempt.
  ///
  /// REQUIRES: the node has been added.
  [[nodiscard]] std::optional<NodeLoss> loss_of(int node, int attempt);

 private:
  struct Node {
    ActiveClock::Time heard;
    int begun = -1;  // the newest attempt whose ranks run there
  };

  SilenceLimits limits_;
  ActiveClock clock_;
  std::map<int, Node> nodes_;
};

}  // namespace launcher
