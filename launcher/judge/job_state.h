// Holds the state of one attempt to run a job; the classes in judge/ read it and update it.
#pragma once

#include <chrono>
#include <optional>
#include <utility>
#include <vector>

#include "dtrain/base/clock.h"
#include "launcher/clocks.h"
#include "launcher/judge/decisions.h"
#include "launcher/judge/verdict.h"
#include "launcher/local/rank_table.h"
#include "launcher/nodes/placement.h"
#include "launcher/options.h"

namespace launcher {

/// Phases of an attempt, in order. Only a false hang alarm leads back to `running`.
enum class Phase {
  running,
  exiting,      ///< a rank has saved and exited (status 9); the others follow within --stop-grace
  diagnosing,   ///< a rank is silent or has timed out: collects all ranks' open collectives
  stopping,     ///< SIGINT or SIGTERM: the ranks save within --stop-grace
  attributing,  ///< a rank failed: waits briefly to find out whether another rank is the cause
  aborting,     ///< a rank failed: the others have --abort-grace to end
  killing,      ///< SIGKILL was sent
  shutdown,     ///< no rank runs: orphans end, remaining output is written (launcher/shutdown.h)
};

/// State shared by the classes in judge/. They add to `decisions`; the supervisor carries these out
/// after each event.
struct JobState {
  using Duration = std::chrono::duration<double>;

  JobState(const Options& job_options, const Placement& job_placement)
      : options(job_options), placement(job_placement), ranks(job_placement) {}

  const Options& options;
  const Placement& placement;
  RankTable ranks;
  Phase phase = Phase::running;
  std::optional<Moment::Time> deadline;  ///< of the phase, by the active clock
  Verdict verdict;
  std::vector<Decision> decisions;

  [[nodiscard]] bool is_coordinator() const { return placement.node_rank == 0; }
  /// True if no failure is known and no stop was requested.
  [[nodiscard]] bool is_undisturbed() const { return phase <= Phase::diagnosing; }

  /// Enters a phase, or prolongs it.
  void enter(Phase next, Duration limit, const Moment& now) {
    phase = next;
    deadline = now.active + std::chrono::duration_cast<dtrain::base::Clock::duration>(limit);
  }
  void decide(Decision decision) { decisions.push_back(std::move(decision)); }
  [[nodiscard]] std::vector<Decision> take_decisions() { return std::exchange(decisions, {}); }
};

}  // namespace launcher
