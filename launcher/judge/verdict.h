// Describes why an attempt to run a job ended, and derives dtrun's exit status and last line.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "launcher/clocks.h"
#include "launcher/local/checkpoint_reports.h"
#include "launcher/local/rank.h"
#include "launcher/nodes/messages.h"
#include "launcher/nodes/placement.h"

namespace launcher {

/// A node that failed: its launcher was lost, or could not start its ranks.
struct NodeFailure {
  int node = 0;
  int status = 0;
  std::string reason;  // "closed its connection: ..."
};

/// The cause of an attempt's end. Default: every rank exited with status 0 or saved.
struct Verdict {
  std::optional<int> culprit;  // the rank that failed first
  std::optional<NodeFailure> lost;
  bool has_lost_node = false;       // at any time: the remaining nodes cannot restart the job
  std::optional<JobResult> result;  // from node 0; overrides all other fields
  std::int64_t failed_ns = 0;       // time of the failure, since the start of the ranks
  int stop_signal = 0;              // sent by the user; 0: none
  int request = 0;       // the last signal that asked to stop, even after the failure; 0: none
  bool overdue = false;  // ranks did not end in time after one had saved and exited

  [[nodiscard]] bool failed() const { return culprit || lost || (result && result->failed); }
  [[nodiscard]] bool clean() const { return !failed() && stop_signal == 0 && !overdue; }
};

/// "exited with status 3", "was killed by signal 9 (SIGKILL)".
[[nodiscard]] std::string describe(const RankEnd& end);
/// The same for any end of a rank: also "was stopped ..." and the reason of a hang.
[[nodiscard]] std::string describe(const Rank& rank);
/// Why a rank is still running at the end of its job.
[[nodiscard]] std::string describe_running(const Rank& rank);

/// Returns whether every rank shares the culprit's error: the culprit reports so, or all others
/// reported the same one. Before the first step, ranks that only blame another rank do not count
/// against that, unless the error concerns the culprit's own memory or device.
[[nodiscard]] bool is_shared_error(const Rank& culprit, const std::vector<Rank>& ranks);

/// Returns whether the rank's standard error explains its end. If a signal killed the rank, a line
/// must contain a word such as "error".
[[nodiscard]] bool explains_itself(const Rank& rank);

/// dtrun's exit status (docs/guide/exit-status.md).
[[nodiscard]] int status_of(const Verdict& verdict, const std::vector<Rank>& ranks);

/// The order that ends the remaining ranks and gives them the reason.
///
/// Requires: a culprit or a lost node.
[[nodiscard]] AbortOrder abort_order(const Verdict& verdict, const std::vector<Rank>& ranks,
                                     const Placement& placement);

/// The report's last line: which rank failed, how, where and why, or who stopped the job. Empty
/// after a clean end.
[[nodiscard]] std::string last_line(const Verdict& verdict, const std::vector<Rank>& ranks,
                                    const Placement& placement);

/// Node 0's announcement of the end of the job.
[[nodiscard]] JobResult job_result(const Verdict& verdict, const std::vector<Rank>& ranks,
                                   const Placement& placement);

/// The latest checkpoint that a rank reported; step -1: none.
[[nodiscard]] ReportedCheckpoint newest_checkpoint(const std::vector<Rank>& ranks);

/// The outcome of one attempt, on which the decision to restart is based.
struct AttemptResult {
  using Seconds = std::chrono::duration<double>;

  int status = 0;                   // dtrun's exit status, unless another attempt follows
  bool has_failed = false;          // a rank failed, and the others were ended because of it
  std::string how;                  // "rank 1 exited with status 7"
  std::optional<int> culprit = {};  // the rank that failed first
  std::optional<int> node = {};     // the culprit's node, or the lost one
  int request = 0;                  // the last signal that asked the job to stop; 0: none
  bool is_left_behind = false;      // one of its processes cannot be killed
  bool has_lost_node = false;       // another launcher cannot be reached any more
  bool is_reporting = false;        // the program reported steps, checkpoints or errors to dtrun
  std::int64_t step = -1;           // the newest that a rank reported; -1: none
  ReportedCheckpoint checkpoint;    // newest_checkpoint of the ranks
  CommittedSteps committed_steps;   // of all runs of a script
  Seconds duration{0};              // from the start of the ranks to the end of the last process
  std::optional<Seconds> recovery;  // StepClock::recovery
};

/// Summarizes an attempt that is over, and records its failure in `steps`.
///
/// start: when the ranks were started.
[[nodiscard]] AttemptResult attempt_result(const Verdict& verdict, const std::vector<Rank>& ranks,
                                           StepClock::Time start, StepClock& steps);

}  // namespace launcher
