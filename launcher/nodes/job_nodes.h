// The other launchers of a job during one attempt to run it.
#pragma once

#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "launcher/nodes/channel.h"
#include "launcher/nodes/placement.h"

namespace launcher {

/// What this launcher and the others tell each other, until it is clear how the attempt ends.
///
/// Threads: one.
class JobNodes {
 public:
  /// channel: none where there is one node.
  JobNodes(std::shared_ptr<Channel> channel, const Placement& placement)
      : channel_(std::move(channel)),
        own_node_(placement.node_rank),
        are_done_(static_cast<std::size_t>(placement.num_nodes())) {}

  /// Returns whether there are other nodes, and they still have a say.
  [[nodiscard]] bool are_heard() const { return channel_ != nullptr && !is_over_; }
  [[nodiscard]] bool has_several() const { return channel_ != nullptr; }
  /// Returns whether this launcher decides how the job ends.
  [[nodiscard]] bool is_coordinator() const { return own_node_ == 0; }
  /// Requires: has_several().
  [[nodiscard]] Channel& channel() const { return *channel_; }

  /// To all launchers that this one is connected with; dropped once it is over.
  void tell_all(NodeMessage kind, std::string_view body = {}) const {
    if (are_heard()) channel_->send_to_all(kind, body);
  }
  /// To node 0.
  void tell_coordinator(NodeMessage kind, std::string_view body = {}) const {
    if (are_heard()) channel_->send(0, kind, body);
  }
  /// From now on nothing that another node says changes how the attempt ends.
  void close() { is_over_ = true; }

  /// All ranks of a node have ended, or it is lost.
  void set_done(int node) { are_done_[static_cast<std::size_t>(node)] = true; }
  [[nodiscard]] bool are_all_done() const {
    for (const bool done : are_done_) {
      if (!done) return false;
    }
    return true;
  }
  [[nodiscard]] bool is_done(int node) const { return are_done_[static_cast<std::size_t>(node)]; }

 private:
  std::shared_ptr<Channel> channel_;
  int own_node_;
  std::vector<bool> are_done_;  // of node 0; of the others: their own entry, once reported
  bool is_over_ = false;
};

}  // namespace launcher
