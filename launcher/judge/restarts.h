// Decides whether a failed job is restarted, and after which back-off; formats the history of its
// attempts, and the report file that programs read (docs/guide/dtrun.md, "The report file").
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/judge/verdict.h"
#include "launcher/nodes/placement.h"

namespace launcher {

/// Limits on automatic restarts of a job.
struct RestartOptions {
  int max_restarts = 0;                      // in total; 0: no restart
  std::chrono::duration<double> backoff{1};  // before the first restart
};

struct RestartDecision {
  bool restarts = false;
  std::chrono::duration<double> wait{0};  // before the restart
  std::string why_not = {};               // empty: nothing failed, or restarts are off
  /// The signal that stopped the job instead of a restart, if a checkpoint was committed: the job
  /// was interrupted rather than failed. 0: none.
  int interrupted_by = 0;
};

/// Decides after each attempt. No I/O; all inputs are arguments. In a job of several nodes, node
/// 0's launcher decides and informs the others.
class RestartPolicy {
 public:
  explicit RestartPolicy(RestartOptions options) : options_(options) {}

  /// Decides what follows an attempt. Call it once per attempt.
  ///
  /// Allows at most max_restarts restarts, and no restart
  ///   - after a permanent error (docs/guide/exit-status.md),
  ///   - after a signal that asked the job to stop,
  ///   - while a process of the job cannot be killed,
  ///   - after the loss of a node, because the number of nodes is fixed,
  ///   - after three restarts in a row without a newer checkpoint of any run, if the program
  ///     reports to dtrun. Attempts that end with a storage error do not count, because the storage
  ///     may recover.
  /// The wait doubles with each restart in a row without a newer checkpoint, up to a minute.
  [[nodiscard]] RestartDecision decide(const AttemptResult& end);

  /// Withdraw the last decision to restart, because of a signal during the back-off or for another
  /// reason.
  [[nodiscard]] RestartDecision stopped_by(int signal);
  [[nodiscard]] RestartDecision withdraw(std::string why_not);

  /// Restarts so far, including the last decision.
  [[nodiscard]] int restarts() const { return restarts_; }
  /// The step of the last checkpoint that an attempt reported; -1: none.
  [[nodiscard]] std::int64_t committed() const { return committed_; }
  /// The last committed steps of all runs.
  [[nodiscard]] const CommittedSteps& committed_steps() const { return last_; }

 private:
  void note_progress(const AttemptResult& end);
  [[nodiscard]] RestartDecision interrupted(int signal) const;
  [[nodiscard]] std::string reason_against(const AttemptResult& end) const;

  RestartOptions options_;
  int restarts_ = 0;
  int in_a_row_ = 0;            // restarts since a newer checkpoint
  int without_checkpoint_ = 0;  // those of in_a_row_ that no storage error caused
  std::int64_t committed_ = -1;
  CommittedSteps last_;
  CommittedSteps highest_;
  bool is_reporting_ = false;  // the program has reported something
};

/// All attempts to run a job, in order, with their total times.
struct History {
  std::vector<AttemptResult> attempts;
  std::chrono::duration<double> useful{0};  // StepClock::useful
  std::chrono::duration<double> wall{0};    // since the first start, waits included
};

/// "restart 1 of 3 in 1.0 s: rank 1 exited with status 7 at step 57; the newest reported checkpoint
/// is of step 50".
[[nodiscard]] std::string restart_line(const AttemptResult& end, const RestartDecision& decision,
                                       const RestartPolicy& policy, int max_restarts);

/// The report on a restarted job: a line for each attempt (the last 20 at most), then recovery
/// times and effective training time if the program reports steps. Empty for a single attempt.
[[nodiscard]] std::vector<std::string> history_lines(const History& history);

/// The checkpoint of the last attempt that had one; step -1: none.
[[nodiscard]] ReportedCheckpoint newest_checkpoint(const History& history);

/// The last line of a failed job: why it is not restarted. why: not empty.
[[nodiscard]] std::string no_restart_line(const History& history, const std::string& why);

/// The content of the report file (one JSON object). status: dtrun's exit status.
[[nodiscard]] std::string report_text(const History& history, const Placement& placement,
                                      int status, const std::string& why_no_restart);

/// Returns whether a report may replace a file that begins with `begin`: true if that file is a
/// report or empty.
[[nodiscard]] bool is_report_or_empty(std::string_view begin);

}  // namespace launcher
