// Sends one attempt's messages to the other nodes' launchers, and receives theirs.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "launcher/local/rank.h"
#include "launcher/nodes/messages.h"
#include "launcher/nodes/node_connections.h"
#include "launcher/nodes/placement.h"
#include "launcher/output/shared_output.h"

namespace launcher {

/// Sends an attempt's reports and orders to the other launchers, and tracks which nodes have
/// finished it. Node 0's launcher is the coordinator. In a job of one node the link is closed from
/// the start: nothing is sent or received.
///
/// Threads: one.
class NodeLink {
 public:
  NodeLink(std::shared_ptr<NodeConnections> connections, const Placement& placement);

  /// Readable when take() has something to do; -1: one node.
  [[nodiscard]] int fd() const { return connections_->fd(); }
  /// Returns whether messages of other nodes still affect this attempt.
  [[nodiscard]] bool is_open() const { return is_open_; }
  [[nodiscard]] bool is_coordinator() const { return own_node_ == 0; }
  [[nodiscard]] bool has_peers() const { return connections_->has_peers(); }
  [[nodiscard]] const SilenceLimits& limits() const { return connections_->limits(); }

  /// To every launcher that this one is connected with. No-op once closed, like the other sends.
  void send_to_all(NodeMessage kind, std::string_view body = {}) const;
  void send_to_coordinator(NodeMessage kind, std::string_view body = {}) const;
  /// Asks node 0 to stop the job, even if the link is closed.
  void send_stop_request(int signal) const;

  /// Reports the process ids of this node's ranks.
  void report_started(std::span<const Rank> own) const;
  /// Reports to node 0 that a rank has ended or stays stopped. In a job of several nodes first
  /// reads what a failed rank has written to its standard error.
  void report_rank(Rank& rank, SharedOutput& console) const;
  /// Reports a rank's progress to node 0, twice a second at most.
  void report_progress(const Rank& rank, std::int64_t now_ns);
  /// Sends a rank's complete response to node 0, and discards it, so that it is not sent again as a
  /// new one.
  void report_records(Rank& rank) const;

  [[nodiscard]] std::vector<NodeEvent> take() { return connections_->take(); }
  /// Gives back the events of the next attempt.
  void put_back(std::vector<NodeEvent> events) { connections_->put_back(std::move(events)); }
  /// From now on no message of another node affects this attempt.
  void close() { is_open_ = false; }

  /// Records that all ranks of a node have ended, or that it is lost.
  void set_done(int node) { done_[static_cast<std::size_t>(node)] = true; }
  [[nodiscard]] bool is_done(int node) const { return done_[static_cast<std::size_t>(node)]; }
  [[nodiscard]] bool all_done() const;

 private:
  /// The last report of a rank's progress.
  struct ProgressReport {
    std::int64_t heartbeats = 0;  // `Rank::heartbeats` at that time; 0: none was sent
    std::int64_t time_ns = 0;
  };

  std::shared_ptr<NodeConnections> connections_;
  int own_node_;
  std::vector<bool> done_;  // a node other than 0 sets only its own entry, once reported
  bool is_open_;
  std::vector<ProgressReport> progress_reports_;  // by rank
};

}  // namespace launcher
