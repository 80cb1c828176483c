// Ranks and jobs that signals stop and continue.
#include <signal.h>

#include <utility>

#include "launcher/pipe.h"
#include "launcher/supervisor.h"

namespace launcher {
namespace {

using namespace std::chrono_literals;

constexpr auto kSuspendWindow = 200ms;
constexpr auto kStopLimit = 2s;  // a job that is stopped as a whole is continued as a whole

}  // namespace

// Only node 0 orders it on all nodes, so that two orders cannot race.
void Supervisor::on_terminal_stop(bool suspends) {
  if (judges()) return suspend_ranks(suspends);
  if (suspends) ++suspensions_;
  if (!is_over_) job_.nodes->send(0, suspends ? NodeMessage::suspend : NodeMessage::resume, {});
}

// Ranks that are ending are skipped: they have a deadline.
void Supervisor::suspend_ranks(bool suspends) {
  const bool is_running = phase_ == Phase::running || phase_ == Phase::asking;
  if (is_suspended_ == suspends || (suspends && !is_running)) return;
  if (phase_ == Phase::asking) withdraw_ask();
  is_suspended_ = suspends;
  stopped_since_.clear();
  if (suspends) ++suspensions_;
  if (judges()) tell_nodes(suspends ? NodeMessage::suspend : NodeMessage::resume);
  for (const Rank& rank : own_ranks()) {
    if (rank.running()) ::kill(-rank.pid, suspends ? SIGTSTP : SIGCONT);
  }
  if (judges()) excuse_ranks();
}

void Supervisor::on_stopped(Rank& rank, int signal) {
  // A batch system sends SIGTSTP to all processes at once: it may reach the rank before the
  // watchdog.
  const bool may_be_of_all = signal == SIGTSTP && !is_suspended_ && suspensions_ == 0;
  if (may_be_of_all && is_readable_within(guard_.signals, kSuspendWindow)) on_guard();
  if (is_suspended_) return;
  if (signal == SIGTSTP && suspensions_ > 0) {  // it stopped after it was continued
    ::kill(-rank.pid, SIGCONT);
    return;
  }
  stopped_since_[rank.index] = active_.now();
}

void Supervisor::look_at_stopped_ranks() {
  for (const auto& [index, since] : stopped_since_) {
    if (!is_undisturbed() && phase_ != Phase::blaming) return;
    Rank& rank = ranks_[static_cast<std::size_t>(index)];
    const bool is_overdue = rank.running() && active_.now() - since >= kStopLimit;
    if (!is_overdue || std::exchange(rank.stopped, true)) continue;
    if (job_.nodes) tell_judge(rank);
    if (judges()) judge_stop(rank);
  }
}

}  // namespace launcher
