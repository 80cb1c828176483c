// What the supervisor does about signals, and about what its ranks say and become.
#include <fmt/format.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <span>
#include <string>
#include <utility>

#include "dtrain/base/text/text.h"
#include "launcher/local/processes.h"
#include "launcher/output/output_writer.h"
#include "launcher/supervisor.h"

namespace launcher {
namespace {

using namespace std::chrono_literals;

constexpr auto kSuspendWindow = 200ms;
constexpr std::size_t kMaxControlText = 8192;

}  // namespace

void Supervisor::on_guard() {
  std::array<unsigned char, 64> signals;
  const ssize_t count = ::read(guard_.signals.get(), signals.data(), signals.size());
  if (count == 0) {  // the guard was killed, so nobody waits for a status
    kill_descendants(1s);
    write_error_for_a_while(own_prefix(job_.options) + "was killed; all its ranks were ended\n");
    verdict_.request = SIGKILL;
    phase_ = Phase::done;
    deadline_.reset();
  }
  for (ssize_t i = 0; i < count; ++i) on_signal(signals[static_cast<std::size_t>(i)]);
}

void Supervisor::on_signal(int signal) {
  if (signal == SIGWINCH) {
    output_.console().redraw();
    const Rank& first = ranks_.at(0);
    const int columns = first.error.columns_within(output_.console().columns());
    return JobRanks::tell(first, fmt::format("columns {}\n", columns));
  }
  if (signal == SIGTSTP || signal == SIGCONT) {
    const bool suspends = signal == SIGTSTP;
    // Only node 0 orders it on all nodes, so that two orders cannot race.
    if (is_coordinator()) return suspend_ranks(suspends);
    if (suspends) stopped_.note_suspension();
    return nodes_.tell_coordinator(suspends ? NodeMessage::suspend : NodeMessage::resume);
  }
  if (asks_to_stop(signal)) {
    verdict_.request = signal;
    // Node 0 decides whether a job that is being ended starts again.
    if (!is_coordinator() && !is_undisturbed()) {
      nodes_.channel().send(0, NodeMessage::stop, std::to_string(signal));
    }
  }
  if (signal == SIGUSR1 || signal == SIGUSR2) {
    for (const Rank& rank : ranks_.own()) {
      if (rank.running()) notify_group(rank.pid, signal);
    }
    return;
  }
  if (phase_ == Phase::writing_logs) {
    if (!deadline_) enter(Phase::writing_logs, kLogLimit);
    return;
  }
  if (phase_ == Phase::draining) {  // nobody reads dtrun's output
    phase_ = Phase::done;
    return;
  }
  const bool is_second_interrupt = signal == SIGINT && std::exchange(is_interrupted_, true);
  const bool saves = verdict_.stop_signal != 0 && !verdict_.failed();
  // A single Ctrl-C leaves ranks that another signal has stopped their time to save. Each launcher
  // of a job may get the same one, and hear of it from another first.
  const bool kills = signal == SIGQUIT || (signal == SIGINT && (!saves || is_second_interrupt));
  if (phase_ >= Phase::leftovers) {
    if (!kills || phase_ == Phase::done) return;
    kill_leftovers();
    return finish_output();
  }
  const bool first = is_undisturbed();
  if (first) verdict_.stop_signal = signal;
  if (signal == SIGQUIT || (!first && kills)) return kill_ranks();
  if (first) return stop_ranks(signal);
  if (signal == SIGINT && phase_ == Phase::stopping)
    output_.say("the ranks are still saving; another Ctrl-C kills them at once");
}

void Supervisor::stop_ranks(int signal) {
  verdict_.stop_signal = signal;
  nodes_.tell_all(NodeMessage::stop, std::to_string(signal));
  output_.say(fmt::format("stopping because of {}; the ranks get SIGTERM and have {} to save{}",
                          signal_name(signal),
                          dtrain::base::readable_time(job_.options.stop_grace.count()),
                          signal == SIGINT ? " (a second Ctrl-C kills at once)" : ""));
  // The program may lie below a shell.
  ranks_.signal_groups(std::array{SIGTERM, SIGCONT}, fmt::format("stop {}\n", signal));
  enter(Phase::stopping, job_.options.stop_grace);
}

// Ranks that are ending are skipped: they have a deadline.
void Supervisor::suspend_ranks(bool suspends) {
  const bool is_running = phase_ == Phase::running || phase_ == Phase::asking;
  if (stopped_.is_suspended() == suspends || (suspends && !is_running)) return;
  if (phase_ == Phase::asking) withdraw_ask();
  stopped_.suspend(suspends);
  if (is_coordinator()) nodes_.tell_all(suspends ? NodeMessage::suspend : NodeMessage::resume);
  ranks_.signal_groups(std::array{suspends ? SIGTSTP : SIGCONT});
  if (is_coordinator()) excuse_ranks();
}

void Supervisor::on_child() {
  signalfd_siginfo ignored{};
  while (::read(child_signals_.get(), &ignored, sizeof(ignored)) > 0) {
  }
  for (siginfo_t info{};
       ::waitid(P_ALL, 0, &info, WSTOPPED | WCONTINUED | WNOHANG) == 0 && info.si_pid != 0;
       info = {}) {
    const std::span<Rank> own = ranks_.own();
    const auto rank = std::ranges::find(own, info.si_pid, &Rank::pid);
    if (rank == own.end() || !rank->running()) continue;
    if (info.si_code == CLD_CONTINUED) {
      stopped_.remove(rank->index);
    } else {
      on_stopped(*rank, info.si_status);
    }
  }
}

void Supervisor::on_stopped(Rank& rank, int signal) {
  // The news of a suspension may reach the rank before the guard.
  const bool may_be_of_all = stopped_.may_be_suspension(signal);
  if (may_be_of_all && is_readable_within(guard_.signals, kSuspendWindow)) on_guard();
  if (stopped_.is_suspended()) return;
  if (stopped_.is_belated(signal)) {
    ::kill(-rank.pid, SIGCONT);
    return;
  }
  stopped_.add(rank.index, active_.now());
}

// A rank that stays stopped holds up all others.
void Supervisor::check_stopped_ranks() {
  for (const int index : stopped_.overdue(active_.now())) {
    if (!is_undisturbed() && phase_ != Phase::blaming) return;
    Rank& rank = ranks_.at(index);
    if (!rank.running() || std::exchange(rank.stopped, true)) continue;
    notify_coordinator(rank);
    if (is_coordinator()) begin_failure(rank);
  }
}

void Supervisor::on_end(Rank& rank) {
  siginfo_t info{};
  if (!rank.running() ||
      ::waitid(P_PID, static_cast<id_t>(rank.pid), &info, WEXITED | WNOHANG) != 0 ||
      info.si_pid == 0) {
    return;
  }
  unwatch(rank.pidfd.get());
  while (on_control(rank)) {  // its last words may not have been seen yet
  }
  rank.end = RankEnd{now_ns(), info.si_code != CLD_EXITED, info.si_status};
  notify_coordinator(rank);
  if (is_coordinator()) judge_end(rank);
}

bool Supervisor::on_control(Rank& rank) {
  std::array<char, kMaxControlText> buffer;
  const ssize_t length = ::recv(rank.control.get(), buffer.data(), buffer.size(), MSG_DONTWAIT);
  if (length < 0 && (errno == EAGAIN || errno == EINTR)) return false;
  if (length <= 0) {  // a program that does not know the descriptor may close it
    unwatch(rank.control.get());
    return false;
  }
  const std::string_view bytes(buffer.data(), static_cast<std::size_t>(length));
  const std::int64_t signs = rank.signs;
  const std::int64_t step = rank.step;
  if (read_control(rank, bytes)) {
    output_.show_error(rank, ranks_.own(), has_begun(ranks_.all()));
  }
  if (!is_coordinator()) report_progress(rank);
  if (rank.signs != signs) on_sign_of_life(rank, step);
  if (!rank.records.empty()) on_records(rank);
  if (rank.index == 0 && steps_.report(rank.step, dtrain::base::Clock::now())) {
    JobRanks::tell(rank, fmt::format("recovered {:.3f}\n", steps_.recovery()->count()));
  }
  return true;
}

}  // namespace launcher
