// The nodes of a job, and which ranks run on each.
#pragma once

#include <fmt/format.h>
#include <unistd.h>

#include <string>
#include <vector>

namespace launcher {

/// One node and its ranks.
struct NodePlace {
  std::string host;
  int first_rank = 0;
  int num_ranks = 1;
};

/// The same in all launchers of a job, except node_rank.
struct Placement {
  int node_rank = 0;
  std::vector<NodePlace> nodes;
  std::string master_addr;  // node 0's
  int master_port = 0;      // the port reserved for rank 0
  int store_port = 0;      // where node 0's dtrun listens, and rank 0 serves its store; 0: one node
  std::string run_id;      // empty: this launcher generates one
  std::string rank_token;  // authenticates ranks to each other over TCP; empty: one node

  [[nodiscard]] int num_nodes() const { return static_cast<int>(nodes.size()); }
  [[nodiscard]] bool has_several_nodes() const { return nodes.size() > 1; }
  [[nodiscard]] const NodePlace& node(int rank) const {
    return nodes[static_cast<std::size_t>(rank)];
  }
  [[nodiscard]] const NodePlace& own() const { return node(node_rank); }
  [[nodiscard]] int world_size() const { return nodes.back().first_rank + nodes.back().num_ranks; }
};

/// "node 1 (hostb)"
[[nodiscard]] inline std::string name_of(const Placement& placement, int node) {
  return fmt::format("node {} ({})", node, placement.node(node).host);
}

/// This machine's name.
[[nodiscard]] inline std::string host_name() {
  char name[256] = "?";
  ::gethostname(name, sizeof(name) - 1);
  return name;
}

}  // namespace launcher
