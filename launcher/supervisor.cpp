#include "launcher/supervisor.h"

#include <signal.h>
#include <sys/epoll.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <limits>
#include <utility>

#include "dtrain/base/readable.h"
#include "launcher/descendants.h"
#include "launcher/output_writer.h"
#include "launcher/signals.h"

namespace launcher {
namespace {

using namespace std::chrono_literals;

// From the moment a failure is seen, blame (supervisor_verdict.cpp) + --abort-grace + kill +
// leftovers + drain end within 3 s at the default grace of 2 s. The drain begins with the logs.
constexpr auto kKillLimit = 300ms;
// A killed rank that holds much memory or a device may take seconds to give it back.
constexpr auto kSlowEndLimit = 10s;
constexpr auto kLeftoverKillLimit = 250ms;
constexpr auto kDrainLimit = 250ms;
constexpr auto kLogLimit = 150ms;
// After a clean end, how long a full disk may take to have room again.
constexpr auto kFullDiskPatience = 1000ms;
// After a clean end, how long a rank's helpers (a tee, say) may finish before SIGTERM.
constexpr auto kLeftoverPeace = 200ms;
constexpr std::size_t kMaxPendingOutput = std::size_t{1} << 20;
// Ranks that end may print much at once, and a disk that is well must lose nothing of it.
constexpr std::size_t kMaxPendingLogsAtEnd = std::size_t{64} << 20;
constexpr std::size_t kMaxControlText = 8192;

// An event's source: a kind, and for most kinds a rank.
enum class Source : std::uint32_t { guard, child, console, nodes, end, control, output, error };

std::uint64_t tag_of(Source source, int rank = 0) {
  return (static_cast<std::uint64_t>(source) << 32) | static_cast<std::uint32_t>(rank);
}

}  // namespace

Supervisor::Supervisor(PreparedJob& job, const GuardLink& guard, StepClock& steps,
                       Stragglers& stragglers)
    : job_(job),
      guard_(guard),
      steps_(steps),
      stragglers_(stragglers),
      hangs_(job_.options.hang_timeout, job_.placement.world_size()),
      console_(own_prefix(job_.options),
               job_.options.emulate_nodes > 0 ? Pieces::atomic : Pieces::large),
      logs_(console_.wake_fd(), job_.options.log_size_limit),
      epoll_(::epoll_create1(EPOLL_CLOEXEC)),
      start_(dtrain::base::Clock::now()) {
  adopt_orphans();
  sigset_t child;
  ::sigemptyset(&child);
  ::sigaddset(&child, SIGCHLD);
  child_signals_ = dtrain::base::Descriptor(::signalfd(-1, &child, SFD_CLOEXEC | SFD_NONBLOCK));
  watch(guard_.signals.get(), tag_of(Source::guard), EPOLLIN);
  watch(child_signals_.get(), tag_of(Source::child), EPOLLIN);
  watch(console_.wake_fd(), tag_of(Source::console), EPOLLIN);
  if (job_.nodes) watch(job_.nodes->fd(), tag_of(Source::nodes), EPOLLIN);
}

AttemptEnd Supervisor::run() {
  steps_.begin_attempt();
  stragglers_.begin_attempt();
  start_ranks();
  if (job_.nodes) {
    tell_begun();
    on_nodes();  // what was put back makes no descriptor readable
  }
  while (phase_ != Phase::done) {
    wait_for_events();
    advance();
  }
  return attempt_end(verdict_, ranks_, start_, steps_);
}

void Supervisor::start_ranks() {
  const Placement& placement = job_.placement;
  ranks_.reserve(static_cast<std::size_t>(placement.world_size()));
  for (int node = 0; node < placement.node_rank; ++node) add_far_ranks(node);
  try {
    for (int local = 0; local < placement.own().num_ranks; ++local) {
      const int index = placement.own().first_rank + local;
      ranks_.push_back(start_rank(job_, index, guard_.original_mask, console_, logs_));
    }
  } catch (...) {
    kill_descendants(kKillLimit);
    throw;
  }
  for (int node = placement.node_rank + 1; node < placement.num_nodes(); ++node) {
    add_far_ranks(node);
  }
  job_.door = {};  // the ranks alone hold it from here on, so that they notice each other's ends
  for (const Rank& rank : own_ranks()) {
    watch(rank.pidfd.get(), tag_of(Source::end, rank.index), EPOLLIN);
    watch(rank.control.get(), tag_of(Source::control, rank.index), EPOLLIN);
    watch(rank.output.fd(), tag_of(Source::output, rank.index), EPOLLIN);
    watch(rank.error.fd(), tag_of(Source::error, rank.index), EPOLLIN);
  }
  if (!job_.binding.masks.empty() && job_.attempt == 0) {
    say(describe(job_.options.bind, job_.binding, placement.own().first_rank));
  }
  if (const std::string folder = job_.folder.log_folder(); !folder.empty()) {
    say("logs of the ranks: " + folder);
  }
}

void Supervisor::watch(int fd, std::uint64_t tag, std::uint32_t events) const {
  epoll_event event{};
  event.events = events;
  event.data.u64 = tag;
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event);
}

void Supervisor::unwatch(int fd) const { ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr); }

void Supervisor::wait_for_events() {
  int timeout_ms = -1;
  auto next = next_deadline();
  if (watches_ranks() || deadline_) {
    const Time soon = dtrain::base::Clock::now() + ActiveClock::kMostBetweenCalls;
    next = std::min(next.value_or(soon), soon);
  }
  if (next) {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(*next - dtrain::base::Clock::now());
    timeout_ms = static_cast<int>(std::clamp<std::int64_t>(left.count(), 0, 60'000));
  }
  // epoll reports in the order in which things became ready, so ranks that died while dtrun was not
  // looking still come in the order of their deaths.
  std::array<epoll_event, 64> events;
  const int count =
      ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), timeout_ms);
  active_.now();  // before anything is judged: this process may have been stopped
  for (int i = 0; i < count; ++i) handle(events[static_cast<std::size_t>(i)].data.u64);
}

void Supervisor::handle(std::uint64_t tag) {
  const auto source = static_cast<Source>(tag >> 32);
  if (source == Source::guard) return on_guard();
  if (source == Source::child) return on_child();
  if (source == Source::console) return console_.rest();  // advance() goes on
  if (source == Source::nodes) return on_nodes();
  Rank& rank = ranks_[tag & 0xFFFFFFFF];
  if (source == Source::end) return on_end(rank);
  if (source == Source::control) return (void)on_control(rank);
  if (source == Source::error) return on_output(rank.error);
  while (on_control(rank)) {  // what a rank says of its output precedes it
  }
  on_output(rank.output);
}

void Supervisor::advance() {
  reap_orphans();
  if (deadline_ && active_.now() >= *deadline_) on_deadline();
  look_at_stopped_ranks();
  look_at_start_errors();
  look_for_silence();
  if (phase_ < Phase::leftovers && !any_running() && job_has_ended()) end_leftovers();
  if (phase_ == Phase::leftovers || phase_ == Phase::leftovers_term) {
    if (!has_children()) finish_output();
  }
  if (phase_ <= Phase::writing_logs) warn_of_logs();
  if (phase_ == Phase::writing_logs && logs_.idle()) finish_logs();
  console_.flush();
  hold_back_output();
  if (phase_ == Phase::draining && console_.pending() == 0) {
    console_.flush();  // a disk that was given up since is told of
    if (console_.pending() == 0) phase_ = Phase::done;
  }
}

void Supervisor::on_deadline() {
  deadline_.reset();
  switch (phase_) {
    case Phase::running:
      break;
    case Phase::leaving:
      verdict_.overdue = true;
      kill_ranks();
      break;
    case Phase::asking:
      judge_hang();
      break;
    case Phase::blaming:
      abort_ranks();
      break;
    case Phase::stopping:
      say(fmt::format(
          "the ranks have not saved within {} (--stop-grace); where a step takes longer, "
          "raise it, or let them save as they go on (dtrain's --checkpoint-every)",
          dtrain::base::readable_time(job_.options.stop_grace.count())));
      kill_ranks();
      break;
    case Phase::aborting:
      kill_ranks();
      break;
    case Phase::killing:  // what survived SIGKILL hangs inside the kernel
      if (extend_kill_timeout()) break;
      if (judges() && job_.nodes) tell_decision();
      is_over_ = true;
      end_leftovers();
      break;
    case Phase::leftovers:
      signal_descendants(SIGTERM);
      enter(Phase::leftovers_term, job_.options.abort_grace);
      break;
    case Phase::leftovers_term:
      kill_leftovers();
      finish_output();
      break;
    case Phase::writing_logs:
      finish_logs();
      break;
    case Phase::draining:
    case Phase::done:
      phase_ = Phase::done;
      break;
  }
}

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
  if (signal == SIGWINCH) return on_resize();
  if (signal == SIGTSTP || signal == SIGCONT) return on_terminal_stop(signal == SIGTSTP);
  if (asks_to_stop(signal)) {
    verdict_.request = signal;
    // Node 0 decides whether a job that is being ended starts again.
    if (!judges() && !is_undisturbed()) {
      job_.nodes->send(0, NodeMessage::stop, std::to_string(signal));
    }
  }
  if (signal == SIGUSR1 || signal == SIGUSR2) {
    for (const Rank& rank : own_ranks()) {
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
    say("the ranks are still saving; another Ctrl-C kills them at once");
}

void Supervisor::stop_ranks(int signal) {
  verdict_.stop_signal = signal;
  tell_nodes(NodeMessage::stop, std::to_string(signal));
  say(fmt::format("stopping because of {}; the ranks get SIGTERM and have {} to save{}",
                  signal_name(signal), dtrain::base::readable_time(job_.options.stop_grace.count()),
                  signal == SIGINT ? " (a second Ctrl-C kills at once)" : ""));
  for (const Rank& rank : own_ranks()) {
    if (!rank.running()) continue;
    tell(rank, fmt::format("stop {}\n", signal));
    ::kill(-rank.pid, SIGTERM);  // the program may lie below a shell
    ::kill(-rank.pid, SIGCONT);
  }
  enter(Phase::stopping, job_.options.stop_grace);
}

void Supervisor::on_child() {
  signalfd_siginfo ignored{};
  while (::read(child_signals_.get(), &ignored, sizeof(ignored)) > 0) {
  }
  for (siginfo_t info{};
       ::waitid(P_ALL, 0, &info, WSTOPPED | WCONTINUED | WNOHANG) == 0 && info.si_pid != 0;
       info = {}) {
    const auto rank = std::ranges::find(own_ranks(), info.si_pid, &Rank::pid);
    if (rank == own_ranks().end() || !rank->running()) continue;
    if (info.si_code == CLD_CONTINUED) {
      stopped_since_.erase(rank->index);
    } else {
      on_stopped(*rank, info.si_status);
    }
  }
}

// Adopted processes have no descriptor that reports their end. Runs after all events: while an
// ended rank is not reaped, it hides those that ended after it, and no further signal would come.
void Supervisor::reap_orphans() {
  for (;;) {
    siginfo_t info{};
    if (::waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0) return;
    const bool is_rank = std::ranges::any_of(
        own_ranks(), [&](const Rank& rank) { return rank.running() && rank.pid == info.si_pid; });
    if (is_rank) return;  // its own event comes; the order of deaths is epoll's
    const RankEnd end{now_ns(), info.si_code != CLD_EXITED, info.si_status};
    const pid_t group = ::getpgid(info.si_pid);
    for (Rank& rank : own_ranks()) {
      if (rank.pid == group && verdict_.stop_signal != 0) rank.take_orphan(end);
    }
    ::waitpid(info.si_pid, nullptr, 0);
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
  if (job_.nodes) tell_judge(rank);
  if (judges()) judge_end(rank);
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
  if (read_control(rank, bytes)) show_error(rank);
  if (!judges()) tell_progress(rank);
  if (rank.signs != signs) on_sign_of_life(rank, step);
  if (!rank.records.empty()) on_records(rank);
  if (rank.index == 0 && steps_.report(rank.step, dtrain::base::Clock::now())) {
    tell(rank, fmt::format("recovered {:.3f}\n", steps_.recovery()->count()));
  }
  return true;
}

void Supervisor::hold_back_output() {
  // Ranks that are to save or to end must not wait for a reader or a disk, so from then on output
  // that nobody takes is dropped.
  const bool ends = !verdict_.clean() || phase_ == Phase::leaving;
  if (ends) {
    console_.drop_beyond(kMaxPendingOutput);
    logs_.drop_beyond(kMaxPendingLogsAtEnd);
  }
  const bool too_much =
      console_.pending_for_readers() > kMaxPendingOutput || logs_.waiting() > kMaxPendingOutput;
  const bool hold = !ends && too_much;
  if (hold == output_held_ || phase_ >= Phase::writing_logs) return;
  output_held_ = hold;
  if (!hold) excuse_ranks();
  for (const Rank& rank : ranks_) {
    for (const auto& [stream, source] :
         {std::pair(&rank.output, Source::output), std::pair(&rank.error, Source::error)}) {
      if (!stream->open()) continue;
      if (hold) {
        unwatch(stream->fd());
      } else {
        watch(stream->fd(), tag_of(source, rank.index), EPOLLIN);
      }
    }
  }
}

void Supervisor::tell(const Rank& rank, std::string_view line) const {
  ::send(rank.control.get(), line.data(), line.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
}

void Supervisor::kill_ranks() {
  tell_nodes(NodeMessage::kill, std::to_string(verdict_.stop_signal));
  for (const Rank& rank : own_ranks()) {
    if (!rank.running()) continue;
    ::kill(-rank.pid, SIGKILL);
    ::kill(rank.pid, SIGKILL);  // where it has left its group
  }
  enter(Phase::killing, kKillLimit);
}

bool Supervisor::extend_kill_timeout() {
  const bool may_restart = job_.options.max_restarts > 0 && verdict_.failed() &&
                           !verdict_.has_lost_node && verdict_.request == 0;
  const bool is_stop = verdict_.stop_signal != 0 && !verdict_.failed();
  if ((!may_restart && !is_stop) || std::exchange(extended_kill_timeout_, true)) return false;
  for (const Rank& rank : ranks_) {
    if (!judges() || !rank.running()) continue;
    say(fmt::format("rank {} has not ended yet after SIGKILL; waiting up to {} s for it",
                    rank.index, kSlowEndLimit.count()));
  }
  enter(Phase::killing, kSlowEndLimit);
  return true;
}

void Supervisor::kill_leftovers() {
  kill_descendants(kLeftoverKillLimit, [this] {
    for (Rank& rank : own_ranks()) on_end(rank);
    reap_orphans();
  });
}

void Supervisor::end_leftovers() {
  if (!has_children()) return finish_output();
  if (verdict_.failed() || phase_ == Phase::killing) {
    kill_leftovers();
    return finish_output();
  }
  if (phase_ != Phase::stopping) return enter(Phase::leftovers, kLeftoverPeace);
  // Programs below a shell that did not wait for them may still be saving.
  if (any_group_running()) return;
  signal_descendants(SIGTERM);     // those that have left the groups
  phase_ = Phase::leftovers_term;  // with what is left of --stop-grace
}

void Supervisor::finish_output() {
  for (Rank& rank : ranks_) {
    rank.output.finish(console_);
    rank.error.finish(console_);
  }
  take_orphans();
  console_.commit_live("");
  show_start_errors();
  logs_.finish();
  // After a clean end a slow disk is waited for, as by any program.
  phase_ = Phase::writing_logs;
  deadline_.reset();
  if (!verdict_.clean()) enter(Phase::writing_logs, kLogLimit);
}

// The report follows the warnings: its last line says why the job ended.
void Supervisor::finish_logs() {
  const bool written = logs_.idle();
  console_.drop_beyond(std::numeric_limits<std::size_t>::max());  // what is told now is no output
  warn_of_logs();
  if (!written) {
    warn(fmt::format("the disk of the logs in {} did not answer: they may lack up to {} bytes",
                     job_.folder.log_folder(), logs_.missing()));
  }
  report(verdict_, ranks_, job_.placement, job_.options.max_restarts > 0, console_);
  deadline_.reset();
  phase_ = Phase::draining;
  const bool patient = verdict_.clean() && written;
  console_.finish(patient ? kFullDiskPatience : kDrainLimit / 5);
  // A reader who pauses is waited for, too.
  if (!patient) enter(Phase::draining, written ? kDrainLimit : kDrainLimit - kLogLimit);
}

void Supervisor::enter(Phase phase, Duration limit) {
  phase_ = phase;
  deadline_ = active_.now() + std::chrono::duration_cast<dtrain::base::Clock::duration>(limit);
}

std::int64_t Supervisor::now_ns() const {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(dtrain::base::Clock::now() - start_)
      .count();
}

}  // namespace launcher
