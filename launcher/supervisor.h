// Supervises one attempt to run a job, from the start of its ranks to the end of its last process.
#pragma once

#include "launcher/clocks.h"
#include "launcher/event_loop.h"
#include "launcher/job.h"
#include "launcher/judge/failure_judge.h"
#include "launcher/judge/job_state.h"
#include "launcher/judge/stop_policy.h"
#include "launcher/judge/stragglers.h"
#include "launcher/local/local_ranks.h"
#include "launcher/local/watchdog.h"
#include "launcher/nodes/node_events.h"
#include "launcher/nodes/node_link.h"
#include "launcher/output/output_relay.h"
#include "launcher/shutdown.h"

namespace launcher {

/// Starts the ranks, passes events to the classes that decide (judge/), and carries out their
/// decisions until no process of the attempt is left.
///
/// One thread waits for events and for the nearest deadline. Nothing blocks, except for at most a
/// second while it kills processes that the ranks have started.
class Supervisor {
 public:
  /// job: the ranks take over its rendezvous socket. steps, stragglers: record this attempt's
  /// steps.
  Supervisor(PreparedJob& job, const WatchdogLink& watchdog, StepClock& steps,
             Stragglers& stragglers);

  /// Throws: as LocalRanks::start.
  [[nodiscard]] AttemptResult run();

 private:
  void start_ranks();
  void wait_for_events();
  void handle(const Event& event);
  void advance();
  void carry_out_decisions();
  void carry_out(const Decision& decision);

  void on_signals();
  void on_child_stops();
  void on_rank_end(Rank& rank);
  bool on_control(Rank& rank);

  PreparedJob& job_;
  const WatchdogLink& watchdog_;
  StepClock& steps_;
  AttemptClock clock_;
  EventLoop loop_;
  OutputRelay output_;
  JobState state_;
  LocalRanks ranks_;
  NodeLink nodes_;
  FailureJudge judge_;
  StopPolicy stops_;
  NodeEvents node_events_;
  Shutdown shutdown_;
};

}  // namespace launcher
