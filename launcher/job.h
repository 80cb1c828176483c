// A job that is ready to run, and its ranks.
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
#include "launcher/nodes/channel.h"
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

/// Throws: Error{spawn} naming both numbers if this process cannot open what so many ranks take.
void require_files_for(int num_ranks);

/// The ranks of a job as one launcher sees them. Those of this node are processes that it has
/// started; those of other nodes are records of what their launchers report to node 0.
///
/// Threads: one.
class JobRanks {
 public:
  explicit JobRanks(const Placement& placement) : placement_(placement) {}

  /// Starts the ranks of this node.
  ///
  /// Throws: naming the program, after which none of them is left: StorageError if the storage of
  ///         its file still fails after 30 s; Error{memory} without room for another process;
  ///         Error{spawn} else, and without descriptors; as LogFolder::create_log.
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
