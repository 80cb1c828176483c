// Exchanges messages and heartbeats with the other nodes' launchers.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dtrain/base/io/descriptor.h"
#include "dtrain/net/message.h"
#include "launcher/nodes/heartbeat_monitor.h"
#include "launcher/nodes/messages.h"
#include "launcher/nodes/placement.h"

namespace launcher {

/// An open connection to another node's launcher, which is authenticated.
struct NodeConnection {
  int node = 0;
  dtrain::net::FramedStream stream;
};

/// A message of another launcher, or its loss.
struct NodeEvent {
  int node = 0;
  std::optional<NodeLoss> loss;  // set: the node is lost (its last event); empty: a message
  NodeMessage kind = NodeMessage::ping;
  int attempt = 0;
  std::string body;
};

/// Carries messages between node 0 and each other node, in order, and reports lost nodes. Node 0
/// sends heartbeats, which the others answer; a side that stays silent for the whole limit counts
/// as lost. Nothing blocks.
///
/// Threads: one.
class NodeConnections {
 public:
  /// For a job of one node: no peers and no descriptors; sends and receives nothing.
  NodeConnections() = default;
  /// Throws: Error{spawn} if no descriptors can be opened.
  NodeConnections(int own_node, std::vector<NodeConnection> links, SilenceLimits limits);

  /// Readable when take() has something to do; -1: a job of one node.
  [[nodiscard]] int fd() const { return epoll_.get(); }
  [[nodiscard]] const SilenceLimits& limits() const { return monitor_.limits(); }

  /// From now on messages belong to this attempt, whose ranks are about to be started.
  void begin_attempt(int attempt);

  /// Queues a message. No-op if the node is lost.
  void send(int node, NodeMessage kind, std::string_view body);
  /// Queues a message to every node that this one is connected with.
  void send_to_all(NodeMessage kind, std::string_view body);

  /// Returns what was received, and sends what could not be sent before. Drops messages of an
  /// earlier attempt, except requests to stop: these count however late they arrive.
  [[nodiscard]] std::vector<NodeEvent> take();
  /// Returns events that the caller does not handle; the next take() begins with them.
  void put_back(std::vector<NodeEvent> events) { put_back_ = std::move(events); }
  /// Returns whether any other launcher is still connected.
  [[nodiscard]] bool has_peers() const;

  /// Waits up to 100 ms until the others have closed their ends: closing first could discard the
  /// last messages to them.
  void wait_for_closing();

 private:
  [[nodiscard]] std::vector<NodeConnection*> ready_peers();
  void post(NodeConnection& peer, NodeMessage kind, std::string_view body);
  void write_to(NodeConnection& peer);
  void read_from(NodeConnection& peer, std::vector<NodeEvent>& events);
  void handle(NodeConnection& peer, NodeEnvelope message, std::vector<NodeEvent>& events);
  void check_heartbeats(std::vector<NodeEvent>& events);
  void lose(NodeConnection& peer, NodeLoss loss, std::vector<NodeEvent>& events);

  int own_node_ = 0;
  HeartbeatMonitor monitor_;
  int attempt_ = 0;
  dtrain::base::Descriptor epoll_;
  dtrain::base::Descriptor timer_;
  std::vector<NodeConnection> peers_;  // `epoll_` holds pointers to the elements
  std::vector<NodeEvent> put_back_;
  bool has_taken_ = false;  // the messages received during the handshakes
};

}  // namespace launcher
