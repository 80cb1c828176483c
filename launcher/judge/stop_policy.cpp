#include "launcher/judge/stop_policy.h"

#include <fmt/format.h>
#include <signal.h>

#include <string>
#include <utility>

#include "dtrain/base/text/text.h"
#include "launcher/local/processes.h"

namespace launcher {

void StopPolicy::user_signal(int signal, const Moment& now) {
  if (signal == SIGTSTP || signal == SIGCONT) {
    const bool suspends = signal == SIGTSTP;
    if (state_.is_coordinator()) return suspend_ranks(suspends, now);
    if (suspends) stopped_.note_suspension();
    return state_.decide(
        SendToCoordinator{.kind = suspends ? NodeMessage::suspend : NodeMessage::resume});
  }
  Verdict& verdict = state_.verdict;
  const bool first = state_.is_undisturbed();
  if (asks_to_stop(signal)) {
    verdict.request = signal;
    // Node 0 decides whether a job that is being ended starts again.
    if (!state_.is_coordinator() && !first) state_.decide(SendStopRequest{signal});
  }
  if (signal == SIGUSR1 || signal == SIGUSR2) return state_.decide(NotifyRanks{signal});
  const bool is_second_interrupt = signal == SIGINT && std::exchange(is_interrupted_, true);
  const bool saves = verdict.stop_signal != 0 && !verdict.failed();
  // After another stop signal, a single Ctrl-C does not shorten the time to save. Each launcher of
  // a job may get the same Ctrl-C, and may first hear of it from another launcher.
  const bool kills = signal == SIGQUIT || (signal == SIGINT && (!saves || is_second_interrupt));
  if (state_.phase == Phase::shutdown) return state_.decide(HurryShutdown{.kills = kills});
  if (first) verdict.stop_signal = signal;
  if (signal == SIGQUIT || (!first && kills)) return judge_.kill_ranks(now);
  if (first) return stop_ranks(signal, now);
  if (signal == SIGINT && state_.phase == Phase::stopping) {
    state_.decide(Say{"the ranks are still saving; another Ctrl-C kills them at once"});
  }
}

void StopPolicy::stop_ranks(int signal, const Moment& now) {
  state_.verdict.stop_signal = signal;
  state_.decide(SendToNodes{.kind = NodeMessage::stop, .body = std::to_string(signal)});
  state_.decide(Say{fmt::format(
      "stopping because of {}; the ranks get SIGTERM and have {} to save{}", signal_name(signal),
      dtrain::base::readable_time(state_.options.stop_grace.count()),
      signal == SIGINT ? " (a second Ctrl-C kills at once)" : "")});
  // The program may be the child of a shell.
  state_.decide(
      SignalRanks{.signals = {SIGTERM, SIGCONT}, .line = fmt::format("stop {}\n", signal)});
  state_.enter(Phase::stopping, state_.options.stop_grace, now);
}

void StopPolicy::suspend_ranks(bool suspends, const Moment& now) {
  const bool is_running = state_.phase == Phase::running || state_.phase == Phase::diagnosing;
  if (stopped_.is_suspended() == suspends || (suspends && !is_running)) return;
  if (state_.phase == Phase::diagnosing) judge_.cancel_diagnosis(now);
  stopped_.suspend(suspends);
  if (state_.is_coordinator()) {
    state_.decide(SendToNodes{.kind = suspends ? NodeMessage::suspend : NodeMessage::resume});
  }
  state_.decide(SignalRanks{.signals = {suspends ? SIGTSTP : SIGCONT}});
  if (state_.is_coordinator()) judge_.reset_hang_timers(now);
}

void StopPolicy::check_stopped_ranks(const Moment& now) {
  for (const int index : stopped_.overdue(now.active)) {
    if (!state_.is_undisturbed() && state_.phase != Phase::attributing) return;
    Rank& rank = state_.ranks.at(index);
    if (!rank.running() || std::exchange(rank.stopped, true)) continue;
    state_.decide(ReportRank{index});
    if (state_.is_coordinator()) judge_.rank_stopped(rank, now);
  }
}

}  // namespace launcher
