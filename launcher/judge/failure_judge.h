// Decides which rank a job's failure is attributed to, and ends the other ranks.
#pragma once

#include <cstdint>
#include <optional>

#include "launcher/judge/hang_watch.h"
#include "launcher/judge/job_state.h"
#include "launcher/judge/stragglers.h"
#include "launcher/local/rank.h"
#include "launcher/nodes/messages.h"

namespace launcher {

/// Turns events of the ranks and nodes into decisions. No I/O; all inputs are arguments, and the
/// state is a JobState.
///
/// A failed rank is the culprit unless it blames another rank (status 4) or reports an error that
/// all ranks may share. In those cases the judge waits a moment for the others' errors. If a rank
/// sends no heartbeat for --hang-timeout, or times out in a collective, the judge asks all ranks
/// for their open collectives; the culprit is the rank that the others wait for.
///
/// Only node 0 receives events of ranks on other nodes. Threads: one.
class FailureJudge {
 public:
  FailureJudge(JobState& state, Stragglers& stragglers);

  /// A rank has ended: `rank.end` is set. On node 0 only.
  void rank_ended(const Rank& rank, const Moment& now);
  /// A rank has been stopped for too long: `rank.stopped` is set. On node 0 only.
  void rank_stopped(const Rank& rank, const Moment& now);
  /// A rank sent a heartbeat. step_before: its last step before this heartbeat.
  void heartbeat(const Rank& rank, std::int64_t step_before, const Moment& now);
  /// A rank's response about its open collectives is complete. On node 0 only.
  void records_arrived(const Moment& now);
  /// A node is lost, or could not start its ranks.
  void node_lost(NodeFailure failure, const Moment& now);
  /// Node 0 ordered all nodes to end their ranks.
  void abort_ordered(const AbortOrder& order, const Moment& now);
  /// Another node ordered to kill all ranks. signal: the user's signal that is the reason; 0: the
  /// end of a grace period.
  void kill_ordered(int signal, const Moment& now);

  /// Asks this node's ranks for their open collectives, unless they have already responded.
  void request_records();
  /// Starts the diagnosis if a rank was silent for --hang-timeout.
  void check_silence(const Moment& now);
  /// The suspected rank makes progress again: ends the diagnosis, or aborts if another rank failed.
  void cancel_diagnosis(const Moment& now);
  /// Restarts all hang timeouts, because output back-pressure or a suspension has held up the
  /// ranks.
  void reset_hang_timers(const Moment& now);
  /// The phase's deadline has passed.
  void deadline_passed(const Moment& now);
  void kill_ranks(const Moment& now);

  [[nodiscard]] const HangWatch& hangs() const { return hangs_; }

 private:
  void begin_failure(const Rank& culprit, const Moment& now);
  void abort_ranks(const Moment& now);
  void send_abort(const AbortOrder& order, const Moment& now);
  void diagnose(int suspect, const Moment& now);
  void judge_hang(const Moment& now);
  [[nodiscard]] bool extend_kill_timeout(const Moment& now);

  JobState& state_;
  Stragglers& stragglers_;
  HangWatch hangs_;
  bool extended_kill_timeout_ = false;
};

}  // namespace launcher
