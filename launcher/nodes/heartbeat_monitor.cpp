#include "launcher/nodes/heartbeat_monitor.h"

#include <algorithm>

namespace launcher {

void HeartbeatMonitor::restart() {
  for (auto& [number, node] : nodes_) node.heard = clock_.now();
}

void HeartbeatMonitor::ranks_started(int node, int attempt) {
  int& begun = nodes_[node].begun;
  begun = std::max(begun, attempt);
}

std::optional<NodeLoss> HeartbeatMonitor::loss_of(int node, int attempt) {
  const Node& state = nodes_.at(node);
  const bool runs = state.begun >= attempt;
  const auto limit = runs ? limits_.running : limits_.starting;
  if (clock_.now() - state.heard <= limit) return std::nullopt;
  return runs ? NodeLoss::silent : NodeLoss::never_started;
}

}  // namespace launcher
