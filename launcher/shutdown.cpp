#include "launcher/shutdown.h"

#include <signal.h>

#include <utility>

#include "launcher/local/processes.h"

namespace launcher {
namespace {

using namespace std::chrono_literals;
using Duration = JobState::Duration;

// After a failure these fit into the time that judge/failure_judge.cpp names. The drain begins with
// the logs.
constexpr auto kOrphanKillLimit = 250ms;
constexpr auto kDrainLimit = 250ms;
// Limit for a log disk that does not respond.
constexpr auto kLogLimit = 150ms;
// After a clean end, how long a full disk may take to have room again.
constexpr auto kFullDiskTimeout = 1000ms;
// After a clean end, how long a rank's helpers (a tee, say) may finish before SIGTERM.
constexpr auto kOrphanGracePeriod = 200ms;

}  // namespace

Shutdown::Shutdown(JobState& state, LocalRanks& ranks, OutputRelay& output,
                   std::function<void()> reap_ranks)
    : state_(state), ranks_(ranks), output_(output), reap_ranks_(std::move(reap_ranks)) {}

void Shutdown::begin(const Moment& now) {
  if (!has_children()) return finish_output(now);
  if (state_.verdict.failed() || state_.phase == Phase::killing) {
    kill_orphans();
    return finish_output(now);
  }
  if (state_.phase != Phase::stopping) return enter(Step::orphans, kOrphanGracePeriod, now);
  // Programs below a shell that did not wait for them may still be saving.
  if (ranks_.any_group_running()) return;
  signal_descendants(SIGTERM);  // those that have left the groups
  const auto stop_deadline = state_.deadline;
  enter(Step::orphans_term, {}, now);
  deadline_ = stop_deadline;
}

void Shutdown::advance(const Moment& now) {
  if (deadline_ && now.active >= *deadline_) deadline_passed(now);
  if ((step_ == Step::orphans || step_ == Step::orphans_term) && !has_children()) {
    finish_output(now);
  }
  if (step_ <= Step::writing_logs) output_.warn_of_logs();
  if (step_ == Step::writing_logs && output_.logs().idle()) finish_logs(now);
  output_.console().flush();
}

void Shutdown::check_drained() {
  SharedOutput& console = output_.console();
  if (step_ == Step::draining && console.pending() == 0) {
    console.flush();  // reports a disk that was given up since
    if (console.pending() == 0) step_ = Step::done;
  }
}

void Shutdown::deadline_passed(const Moment& now) {
  deadline_.reset();
  switch (step_) {
    case Step::not_begun:
      break;
    case Step::orphans:
      signal_descendants(SIGTERM);
      enter(Step::orphans_term, state_.options.abort_grace, now);
      break;
    case Step::orphans_term:
      kill_orphans();
      finish_output(now);
      break;
    case Step::writing_logs:
      finish_logs(now);
      break;
    case Step::draining:
    case Step::done:
      step_ = Step::done;
      break;
  }
}

void Shutdown::hurry(bool kills, const Moment& now) {
  if (step_ == Step::writing_logs) {
    if (!deadline_) enter(Step::writing_logs, kLogLimit, now);
  } else if (step_ == Step::draining) {  // dtrun's output has no reader
    step_ = Step::done;
  } else if (kills && step_ != Step::done) {
    kill_orphans();
    finish_output(now);
  }
}

void Shutdown::abandon() {
  state_.phase = Phase::shutdown;
  step_ = Step::done;
  deadline_.reset();
}

void Shutdown::enter(Step step, std::optional<Duration> limit, const Moment& now) {
  state_.phase = Phase::shutdown;
  state_.deadline.reset();
  step_ = step;
  deadline_.reset();
  if (limit) {
    deadline_ = now.active + std::chrono::duration_cast<dtrain::base::Clock::duration>(*limit);
  }
}

void Shutdown::kill_orphans() { kill_descendants(kOrphanKillLimit, reap_ranks_); }

void Shutdown::finish_output(const Moment& now) {
  output_.finish(state_.ranks.all());
  ranks_.adopt_orphan_ends();
  // After a clean end dtrun waits for a slow disk, as any program does.
  const bool is_clean = state_.verdict.clean();
  enter(Step::writing_logs, is_clean ? std::nullopt : std::optional<Duration>(kLogLimit), now);
}

void Shutdown::finish_logs(const Moment& now) {
  const bool written = output_.logs().idle();
  output_.print_report(state_.verdict, state_.ranks.all(), state_.placement);
  const bool patient = state_.verdict.clean() && written;
  output_.console().finish(patient ? kFullDiskTimeout : kDrainLimit / 5);
  // After a clean end dtrun also waits for a reader that pauses.
  const auto limit = written ? kDrainLimit : kDrainLimit - kLogLimit;
  enter(Step::draining, patient ? std::nullopt : std::optional<Duration>(limit), now);
}

}  // namespace launcher
