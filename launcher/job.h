// Declares PreparedJob, a job that is checked and ready to start its ranks.
#pragma once

#include <sys/resource.h>

#include <memory>
#include <string>

#include "launcher/local/bind.h"
#include "launcher/local/port.h"
#include "launcher/nodes/node_connections.h"
#include "launcher/nodes/placement.h"
#include "launcher/options.h"
#include "launcher/output/log_folder.h"

namespace launcher {

/// The options, sockets and folders that this node's ranks need. Every check that is possible
/// before a rank starts has passed.
struct PreparedJob {
  Options options;
  Placement placement;
  std::shared_ptr<NodeConnections> nodes;  // to the other launchers; not null
  std::string program_file;
  ReservedPort port;
  RendezvousSocket rendezvous;              // single-node jobs only
  dtrain::base::Descriptor store_listener;  // multi-node, node 0 only: for rank 0 in each attempt
  PortClaim store_claim;                    // claims store_listener's port
  LogFolder folder;
  CpuBinding binding = {};
  int attempt = 0;                  // 0: the first
  std::string committed = {};       // CommittedSteps of earlier attempts
  std::string restart_reason = {};  // how the previous attempt failed
  rlimit open_files{};              // dtrun's original RLIMIT_NOFILE, restored for the ranks

  /// A rank's end of the rendezvous socket, by its index in the job; -1: the ranks use TCP.
  [[nodiscard]] int store_fd(int index) const {
    return index == 0 ? rendezvous.rank0_end.get() : rendezvous.other_end.get();
  }
  /// The socket on which rank 0 serves its store; -1: none, or another rank.
  [[nodiscard]] int store_listener_fd(int index) const {
    return index == 0 ? store_listener.get() : -1;
  }
};

}  // namespace launcher
