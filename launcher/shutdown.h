// Terminates orphan processes, drains the ranks' remaining output and writes the report.
#pragma once

#include <chrono>
#include <functional>
#include <optional>

#include "launcher/judge/job_state.h"
#include "launcher/local/local_ranks.h"
#include "launcher/output/output_relay.h"

namespace launcher {

/// The last phase of an attempt, after all ranks have exited. Its steps only move forward:
///
///   orphans       processes started by ranks get time to finish, then SIGTERM, then SIGKILL
///   writing_logs  the logs are flushed to disk
///   draining      the report and the remaining output are written
///
/// Threads: one.
class Shutdown {
 public:
  /// reap_ranks: reaps ranks that SIGKILL has ended, and handles their exit.
  Shutdown(JobState& state, LocalRanks& ranks, OutputRelay& output,
           std::function<void()> reap_ranks);

  /// Begins the shutdown. No-op while programs that a shell started may still be saving: then call
  /// it again.
  void begin(const Moment& now);
  /// Takes the steps that are due, and passes output on to its writers. Call it after each event.
  void advance(const Moment& now);
  /// Ends the shutdown once all output is written.
  void check_drained();
  /// The user sent another signal. kills: it ends the remaining processes now.
  void hurry(bool kills, const Moment& now);
  /// Ends the shutdown without a report, because the watchdog was killed.
  void abandon();

  /// By the active clock; nullopt: waits only for events.
  [[nodiscard]] std::optional<Moment::Time> deadline() const { return deadline_; }
  [[nodiscard]] bool has_taken_output() const { return step_ >= Step::writing_logs; }
  [[nodiscard]] bool is_done() const { return step_ == Step::done; }

 private:
  enum class Step { not_begun, orphans, orphans_term, writing_logs, draining, done };

  void enter(Step step, std::optional<JobState::Duration> limit, const Moment& now);
  void deadline_passed(const Moment& now);
  void kill_orphans();
  void finish_output(const Moment& now);
  void finish_logs(const Moment& now);

  JobState& state_;
  LocalRanks& ranks_;
  OutputRelay& output_;
  std::function<void()> reap_ranks_;
  Step step_ = Step::not_begun;
  std::optional<Moment::Time> deadline_;
};

}  // namespace launcher
