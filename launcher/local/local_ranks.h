// Starts, signals and reaps the processes of this node's ranks.
#pragma once

#include <signal.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "launcher/local/rank_table.h"
#include "launcher/output/log_writer.h"

namespace launcher {

struct PreparedJob;

/// Checks that this process may open as many file descriptors as `num_ranks` ranks need.
///
/// Throws: Error{spawn} naming the number of ranks and of files for each.
void require_files_for(int num_ranks);

/// The processes of this node's ranks, whose records are in a RankTable.
///
/// Threads: one.
class LocalRanks {
 public:
  explicit LocalRanks(RankTable& table) : table_(table) {}

  /// Starts this node's ranks, and fills the table with the records of all ranks.
  ///
  /// Throws: naming the program, and leaves no rank running: StorageError if the storage of its
  ///         file still fails after 30 s; Error{memory} if there is no memory for another process;
  ///         Error{spawn} for other reasons, such as too many open files; also as
  ///         LogFolder::create_log.
  void start(const PreparedJob& job, const sigset_t& signal_mask, LogWriter& logs);

  /// Returns whether a process group of these ranks has processes left.
  [[nodiscard]] bool any_group_running();

  /// Sends a line over a rank's control socket.
  static void send_line(const Rank& rank, std::string_view line);
  /// Sends `line`, unless it is empty, to the ranks that run; then signals, in this order, to their
  /// process groups.
  void signal_groups(std::span<const int> signals, std::string_view line = {});
  /// Sends a signal to the running ranks, as notify_group.
  void notify(int signal);
  /// Sends SIGKILL to the running ranks and their process groups.
  void kill();

  /// Reaps the rank's process if it has ended. Returns its end, without the time; nullopt if the
  /// rank runs or was reaped before.
  [[nodiscard]] static std::optional<RankEnd> reap(const Rank& rank);
  /// Reaps orphaned descendants of ranks. now_ns: since the start of the ranks. counts: whether the
  /// end of an orphan may replace that of its rank, as after a stop.
  void reap_orphans(std::int64_t now_ns, bool counts);
  /// Replaces the ends of ranks by those of their orphans.
  void adopt_orphan_ends();

 private:
  RankTable& table_;
};

}  // namespace launcher
