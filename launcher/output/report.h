// Reports how an attempt to run a job ended.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "launcher/clocks.h"
#include "launcher/local/rank.h"
#include "launcher/nodes/messages.h"
#include "launcher/nodes/placement.h"
#include "launcher/output/shared_output.h"

namespace launcher {

/// A node that was lost, or whose launcher could not start its ranks.
struct NodeFailure {
  int node = 0;
  int status = 0;
  std::string reason;  // "closed its connection: ..."
};

/// Why the job ended other than with zeros.
struct Verdict {
  std::optional<int> culprit;  // the rank that failed first
  std::optional<NodeFailure> lost;
  bool has_lost_node = false;       // however late: what remains of the job cannot be started again
  std::optional<Decision> decided;  // what node 0 told this launcher; nothing else counts then
  std::int64_t failed_ns = 0;       // when that was seen, since the start of the ranks
  int stop_signal = 0;              // what the user sent; 0: nothing
  int request = 0;                  // the last signal that asks_to_stop, however late; 0: none
  bool overdue = false;             // ranks did not end in time after one had saved and left

  [[nodiscard]] bool failed() const { return culprit || lost || (decided && decided->failed); }
  [[nodiscard]] bool clean() const { return !failed() && stop_signal == 0 && !overdue; }
};

/// "exited with status 3", "was killed by signal 9 (SIGKILL)", "was stopped ...".
[[nodiscard]] std::string describe(const Rank& rank);

/// dtrun's exit status (docs/guide/exit-status.md).
[[nodiscard]] int status_of(const Verdict& verdict, const std::vector<Rank>& ranks);

/// What ends the ranks and tells them why.
///
/// Requires: a culprit or a lost node.
[[nodiscard]] AbortOrder abort_order(const Verdict& verdict, const std::vector<Rank>& ranks,
                                     const Placement& placement);

/// The line that tells which rank failed, how, where and why, or who stopped the job; empty where
/// there is nothing to tell.
[[nodiscard]] std::string last_line(const Verdict& verdict, const std::vector<Rank>& ranks,
                                    const Placement& placement);

/// Prints the lines after a job that failed or was stopped: the culprit's last output, the ranks
/// that ended because of it, how to continue if no restart may follow, and last the one line that
/// names the rank, how and where it failed, and why.
///
/// Requires: `console` drops no lines.
void report(const Verdict& verdict, const std::vector<Rank>& ranks, const Placement& placement,
            bool may_restart, SharedOutput& console);

/// The latest checkpoint that a rank reported; step -1: none.
[[nodiscard]] ReportedCheckpoint newest_checkpoint(const std::vector<Rank>& ranks);

/// What counts of an attempt for those that may follow.
struct AttemptEnd {
  using Seconds = std::chrono::duration<double>;

  int status = 0;                   // dtrun's, if no attempt follows
  bool has_failed = false;          // a rank failed, and the others were ended because of it
  std::string how;                  // "rank 1 exited with status 7"
  std::optional<int> culprit = {};  // the rank that failed first
  std::optional<int> node = {};     // the culprit's, or the one that was lost
  int request = 0;                  // the last signal that asked the job to stop; 0: none
  bool is_left_behind = false;      // a process of it cannot be killed
  bool has_lost_node = false;       // another launcher cannot be reached any more
  bool is_reporting = false;        // the program reported steps, checkpoints or errors to dtrun
  std::int64_t step = -1;           // the newest that a rank reported; -1: none
  ReportedCheckpoint checkpoint;    // newest_checkpoint of the ranks
  CommittedSteps committed_steps;   // of all runs of a script
  Seconds duration{0};              // from the start of the ranks to the end of the last process
  std::optional<Seconds> recovery;  // StepClock::recovery
};

/// Collects the end of an attempt that is over. start: of its ranks. steps: is told of a failure.
[[nodiscard]] AttemptEnd attempt_end(const Verdict& verdict, const std::vector<Rank>& ranks,
                                     StepClock::Time start, StepClock& steps);

}  // namespace launcher
