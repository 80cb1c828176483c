// Decides what the user's signals do to a job: stop, kill, suspend or resume it.
#pragma once

#include "launcher/judge/failure_judge.h"
#include "launcher/judge/hang_watch.h"
#include "launcher/judge/job_state.h"

namespace launcher {

/// Turns signals and stopped ranks into decisions. No I/O; all inputs are arguments.
///
/// SIGINT and SIGTERM let the ranks save within --stop-grace; a second SIGINT, or SIGQUIT, kills
/// them. SIGTSTP and SIGCONT suspend and resume the ranks of all nodes, on node 0's order only, so
/// that two orders cannot race. SIGUSR1 and SIGUSR2 are forwarded to the ranks.
///
/// Threads: one.
class StopPolicy {
 public:
  StopPolicy(JobState& state, FailureJudge& judge) : state_(state), judge_(judge) {}

  /// A signal that the user, or a batch system, sent to this launcher.
  void user_signal(int signal, const Moment& now);
  /// Has the ranks of all nodes save and exit.
  void stop_ranks(int signal, const Moment& now);
  /// Suspends or resumes the ranks. No effect on ranks that are ending: they have a deadline.
  void suspend_ranks(bool suspends, const Moment& now);
  /// Fails a rank that stays stopped while the job is not suspended.
  void check_stopped_ranks(const Moment& now);

  /// Returns whether silent ranks count as hung: false while the user or back-pressure holds them
  /// up.
  [[nodiscard]] bool watches_heartbeats(bool has_back_pressure) const {
    return state_.is_coordinator() && state_.phase == Phase::running && !has_back_pressure &&
           !stopped_.is_suspended();
  }
  [[nodiscard]] StoppedRanks& stopped() { return stopped_; }
  [[nodiscard]] const StoppedRanks& stopped() const { return stopped_; }

 private:
  JobState& state_;
  FailureJudge& judge_;
  StoppedRanks stopped_;
  bool is_interrupted_ = false;  // this launcher has received a SIGINT
};

}  // namespace launcher
