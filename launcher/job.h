// A job that is ready to run.
#pragma once

#include <signal.h>
#include <sys/resource.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/local/bind.h"
#include "launcher/local/port.h"
#include "launcher/local/rank.h"
#include "launcher/nodes/node_connections.h"
#include "launcher/nodes/placement.h"
#include "launcher/options.h"
#include "launcher/output/log_folder.h"
#include "launcher/output/log_writer.h"
#include "launcher/output/shared_output.h"

namespace launcher {

/// All that can be refused before a rank starts has been checked.
struct PreparedJob {
  Options options;
  Placement placement;
  std::shared_ptr<NodeConnections> nodes;  // to the other launchers; none: one node
  std::string program_file;
  ReservedPort port;
  Door door;                                // of one node
  dtrain::base::Descriptor store_listener;  // of node 0 of several, for rank 0 of each attempt
  PortClaim store_claim;                    // of its port
  LogFolder folder;
  CpuBinding binding = {};
  int attempt = 0;                  // 0: the first
  std::string committed = {};       // CommittedSteps of the attempts before this one
  std::string restart_reason = {};  // how the attempt before this one failed
  rlimit open_files{};              // RLIMIT_NOFILE as dtrun found it, which the ranks get

  /// A rank's end of the door, by its index in the job; -1: the ranks meet over TCP.
  [[nodiscard]] int store_fd(int index) const {
    return index == 0 ? door.inside.get() : door.outside.get();
  }
  /// Of rank 0: the socket that listens for its store; -1: none.
  [[nodiscard]] int store_listener_fd(int index) const {
    return index == 0 ? store_listener.get() : -1;
  }
};

}  // namespace launcher
