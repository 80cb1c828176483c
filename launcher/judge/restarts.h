// Decides whether a job that failed is started again, and after what wait; tells of its attempts in
// lines and in the report file, which programs read (docs/guide/dtrun.md, "The report file").
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/judge/verdict.h"
#include "launcher/nodes/placement.h"

namespace launcher {

struct RestartOptions {
  int max_restarts = 0;                      // in all; 0: a job is never started again
  std::chrono::duration<double> backoff{1};  // before the first restart
};

struct RestartDecision {
  bool restarts = false;
  std::chrono::duration<double> wait{0};  // before the restart
  std::string why_not = {};               // empty: nothing failed, or restarts were not asked for
  /// The signal that asked the job to stop when it would have been restarted, of which a checkpoint
  /// stands: it was interrupted rather than failed. 0: none.
  int interrupted_by = 0;
};

/// Pure: knows of the job what it is told. Of a job over several nodes one launcher decides, and
/// tells the others.
class RestartPolicy {
 public:
  explicit RestartPolicy(RestartOptions options) : options_(options) {}

  /// Takes the end of an attempt, each one once, and decides what follows.
  ///
  /// There are at most max_restarts restarts, and none
  ///   - after an error that would come again (docs/guide/exit-status.md),
  ///   - after a signal that asked the job to stop,
  ///   - beside a process of the job that cannot be killed,
  ///   - without a node whose dtrun is lost: the number of nodes is fixed,
  ///   - after three in a row without a newer checkpoint of any run, if the program reports any.
  ///     Attempts that end with the status of a storage error do not count: the storage may come
  ///     back.
  /// The wait doubles with each restart in a row without a newer checkpoint, to a minute at most.
  [[nodiscard]] RestartDecision after(const AttemptResult& end);

  /// Take back the last decision to start the job again, because a signal came during the wait, or
  /// for another reason.
  [[nodiscard]] RestartDecision stopped_by(int signal);
  [[nodiscard]] RestartDecision taken_back(std::string why_not);

  /// Restarts so far, the last decision's included.
  [[nodiscard]] int restarts() const { return restarts_; }
  /// The step of the last checkpoint that an attempt reported; -1: none.
  [[nodiscard]] std::int64_t committed() const { return committed_; }
  /// The last ones of all runs.
  [[nodiscard]] const CommittedSteps& committed_steps() const { return last_; }

 private:
  void note_progress(const AttemptResult& end);
  [[nodiscard]] RestartDecision interrupted(int signal) const;
  [[nodiscard]] std::string reason_against(const AttemptResult& end) const;

  RestartOptions options_;
  int restarts_ = 0;
  int in_a_row_ = 0;   // restarts since a newer checkpoint
  int fruitless_ = 0;  // those of them that no storage error caused
  std::int64_t committed_ = -1;
  CommittedSteps last_;
  CommittedSteps highest_;
  bool is_reporting_ = false;  // the program has reported something
};

/// All attempts to run a job, in order, and what was measured over them.
struct History {
  std::vector<AttemptResult> attempts;
  std::chrono::duration<double> useful{0};  // StepClock::useful
  std::chrono::duration<double> wall{0};    // since the first start, waits included
};

/// "restart 1 of 3 in 1.0 s: rank 1 exited with status 7 at step 57; the newest reported checkpoint
/// is of step 50".
[[nodiscard]] std::string restart_line(const AttemptResult& end, const RestartDecision& decision,
                                       const RestartPolicy& policy, int max_restarts);

/// The report on a job that was started again: a line for each attempt (of many the last), then
/// recovery times and effective training time as far as they are known. Empty for one attempt.
[[nodiscard]] std::vector<std::string> history_lines(const History& history);

/// The checkpoint of the last attempt that had one; step -1: none.
[[nodiscard]] ReportedCheckpoint newest_checkpoint(const History& history);

/// The last line of a job that failed: why it is not started again. why: not empty.
[[nodiscard]] std::string no_restart_line(const History& history, const std::string& why);

/// The content of the file. status: dtrun's.
[[nodiscard]] std::string report_text(const History& history, const Placement& placement,
                                      int status, const std::string& why_no_restart);

/// Returns whether a text begins as report_text does, or is empty: it may be replaced by a report.
[[nodiscard]] bool is_report_or_empty(std::string_view begin);

}  // namespace launcher
