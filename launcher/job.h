// Prepares a job and starts its ranks.
#pragma once

#include <signal.h>
#include <sys/resource.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "launcher/bind.h"
#include "launcher/log_folder.h"
#include "launcher/log_writer.h"
#include "launcher/nodes/channel.h"
#include "launcher/nodes/placement.h"
#include "launcher/options.h"
#include "launcher/port.h"
#include "launcher/rank.h"
#include "launcher/shared_output.h"

namespace launcher {

/// All that can be refused before a rank starts has been checked.
struct PreparedJob {
  Options options;
  Placement placement;
  std::shared_ptr<Channel> nodes;  // to the other launchers; none: one node
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

/// Starts one rank of this node. `index` counts the ranks of the job.
///
/// Throws: as spawn and LogFolder::create_log; Error{spawn} without descriptors. This rank has no
///         process then.
[[nodiscard]] Rank start_rank(const PreparedJob& job, int index, const sigset_t& signal_mask,
                              const SharedOutput& console, LogWriter& logs);

/// Throws: Error{spawn} naming both numbers if this process cannot open what so many ranks take.
void require_files_for(int num_ranks);

/// The record of a rank that another node's launcher starts.
[[nodiscard]] Rank far_rank(const PreparedJob& job, int node, int index);

}  // namespace launcher
