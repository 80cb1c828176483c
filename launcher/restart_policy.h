// Decides whether a job that failed is started again, and after what wait.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "launcher/report.h"

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
  ///   - after an error that would come again (docs/exit-status.md),
  ///   - after a signal that asked the job to stop,
  ///   - beside a process of the job that cannot be killed,
  ///   - without a node whose dtrun is lost: the number of nodes is fixed,
  ///   - after three in a row without a newer checkpoint of any run, if the program reports any.
  ///     Attempts that end with the status of a storage error do not count: the storage may come
  ///     back.
  /// The wait doubles with each restart in a row without a newer checkpoint, to a minute at most.
  [[nodiscard]] RestartDecision after(const AttemptEnd& end);

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
  void note_progress(const AttemptEnd& end);
  [[nodiscard]] RestartDecision interrupted(int signal) const;
  [[nodiscard]] std::string reason_against(const AttemptEnd& end) const;

  RestartOptions options_;
  int restarts_ = 0;
  int in_a_row_ = 0;   // restarts since a newer checkpoint
  int fruitless_ = 0;  // those of them that no storage error caused
  std::int64_t committed_ = -1;
  CommittedSteps last_;
  CommittedSteps highest_;
  bool is_reporting_ = false;  // the program has reported something
};

}  // namespace launcher
