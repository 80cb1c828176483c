#include "launcher/supervisor.h"

#include <fmt/format.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "dtrain/base/text/text.h"
#include "launcher/local/processes.h"

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
// After a clean end, how long a full disk may take to have room again.
constexpr auto kFullDiskPatience = 1000ms;
// After a clean end, how long a rank's helpers (a tee, say) may finish before SIGTERM.
constexpr auto kOrphanGracePeriod = 200ms;

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
      output_(job.options),
      ranks_(job.placement),
      nodes_(job.nodes, job.placement),
      hangs_(job.options.hang_timeout, job.placement.world_size()),
      epoll_(::epoll_create1(EPOLL_CLOEXEC)),
      start_(dtrain::base::Clock::now()) {
  adopt_orphans();
  sigset_t child;
  ::sigemptyset(&child);
  ::sigaddset(&child, SIGCHLD);
  child_signals_ = dtrain::base::Descriptor(::signalfd(-1, &child, SFD_CLOEXEC | SFD_NONBLOCK));
  watch(guard_.signals.get(), tag_of(Source::guard));
  watch(child_signals_.get(), tag_of(Source::child));
  watch(output_.console().waker()->fd(), tag_of(Source::console));
  if (nodes_.has_several()) watch(nodes_.channel().fd(), tag_of(Source::nodes));
}

AttemptEnd Supervisor::run() {
  steps_.begin_attempt();
  stragglers_.begin_attempt();
  start_ranks();
  if (nodes_.has_several()) {
    notify_started();
    on_nodes();  // what was put back makes no descriptor readable
  }
  while (phase_ != Phase::done) {
    wait_for_events();
    advance();
  }
  return attempt_end(verdict_, ranks_.all(), start_, steps_);
}

void Supervisor::start_ranks() {
  ranks_.start(job_, guard_.original_mask, output_.console(), output_.logs());
  job_.door = {};  // the ranks alone hold it from here on, so that they notice each other's ends
  for (const Rank& rank : ranks_.own()) {
    watch(rank.pidfd.get(), tag_of(Source::end, rank.index));
    watch(rank.control.get(), tag_of(Source::control, rank.index));
  }
  watch_output(true);
  if (!job_.binding.masks.empty() && job_.attempt == 0) {
    output_.say(describe(job_.options.bind, job_.binding, job_.placement.own().first_rank));
  }
  if (const std::string folder = job_.folder.log_folder(); !folder.empty()) {
    output_.say("logs of the ranks: " + folder);
  }
}

void Supervisor::watch(int fd, std::uint64_t tag) const {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = tag;
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event);
}

void Supervisor::unwatch(int fd) const { ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr); }

void Supervisor::watch_output(bool watches) {
  for (const Rank& rank : ranks_.own()) {
    for (const auto& [stream, source] :
         {std::pair(&rank.output, Source::output), std::pair(&rank.error, Source::error)}) {
      if (!stream->open()) continue;
      if (watches) {
        watch(stream->fd(), tag_of(source, rank.index));
      } else {
        unwatch(stream->fd());
      }
    }
  }
}

std::optional<Supervisor::Time> Supervisor::next_deadline() const {
  std::optional<Time> next = deadline_;
  const auto silence = watches_silence() ? hangs_.next_look() : std::nullopt;
  if (silence) next = std::min(next.value_or(Time::max()), *silence);
  return next ? std::optional(active_.on_wall(*next)) : std::nullopt;
}

void Supervisor::wait_for_events() {
  int timeout_ms = -1;
  auto next = next_deadline();
  const bool watches_ranks =
      is_undisturbed() && (output_.has_start_errors() || hangs_.watches_any() || !stopped_.empty());
  if (watches_ranks || deadline_) {
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
  if (source == Source::console) return output_.console().waker()->rest();  // advance() goes on
  if (source == Source::nodes) return on_nodes();
  Rank& rank = ranks_.at(static_cast<int>(tag & 0xFFFFFFFF));
  if (source == Source::end) return on_end(rank);
  if (source == Source::control) return (void)on_control(rank);
  if (source == Source::error) return output_.read(rank.error);
  while (on_control(rank)) {  // what a rank says of its output precedes it
  }
  output_.read(rank.output);
}

void Supervisor::advance() {
  ranks_.reap_orphans(now_ns(), verdict_.stop_signal != 0);
  if (deadline_ && active_.now() >= *deadline_) on_deadline();
  check_stopped_ranks();
  if (phase_ == Phase::running && output_.has_start_errors()) {
    output_.show_old_start_errors(has_begun(ranks_.all()));
  }
  check_heartbeats();
  if (phase_ < Phase::leftovers && !ranks_.any_running() && job_has_ended()) end_leftovers();
  if (phase_ == Phase::leftovers || phase_ == Phase::leftovers_term) {
    if (!has_children()) finish_output();
  }
  if (phase_ <= Phase::writing_logs) output_.warn_of_logs();
  if (phase_ == Phase::writing_logs && output_.logs().idle()) finish_logs();
  SharedOutput& console = output_.console();
  console.flush();
  hold_back_output();
  if (phase_ == Phase::draining && console.pending() == 0) {
    console.flush();  // a disk that was given up since is told of
    if (console.pending() == 0) phase_ = Phase::done;
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
      output_.say(fmt::format(
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
      if (is_coordinator() && nodes_.has_several()) announce_decision();
      nodes_.close();
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

void Supervisor::kill_ranks() {
  nodes_.tell_all(NodeMessage::kill, std::to_string(verdict_.stop_signal));
  ranks_.kill();
  enter(Phase::killing, kKillLimit);
}

void Supervisor::hold_back_output() {
  // Ranks that are to save or to end must not wait for a reader or a disk.
  const bool ends = !verdict_.clean() || phase_ == Phase::leaving;
  if (!output_.update_hold(ends) || phase_ >= Phase::writing_logs) return;
  if (!output_.is_held()) excuse_ranks();
  watch_output(!output_.is_held());
}

// Once, for ranks that free much memory, if a restart may follow or a user stopped the job.
bool Supervisor::extend_kill_timeout() {
  const bool may_restart = job_.options.max_restarts > 0 && verdict_.failed() &&
                           !verdict_.has_lost_node && verdict_.request == 0;
  const bool is_stop = verdict_.stop_signal != 0 && !verdict_.failed();
  if ((!may_restart && !is_stop) || std::exchange(extended_kill_timeout_, true)) return false;
  for (const Rank& rank : ranks_.all()) {
    if (!is_coordinator() || !rank.running()) continue;
    output_.say(fmt::format("rank {} has not ended yet after SIGKILL; waiting up to {} s for it",
                            rank.index, kSlowEndLimit.count()));
  }
  enter(Phase::killing, kSlowEndLimit);
  return true;
}

void Supervisor::kill_leftovers() {
  kill_descendants(kLeftoverKillLimit, [this] {
    for (Rank& rank : ranks_.own()) on_end(rank);
    ranks_.reap_orphans(now_ns(), verdict_.stop_signal != 0);
  });
}

void Supervisor::end_leftovers() {
  if (!has_children()) return finish_output();
  if (verdict_.failed() || phase_ == Phase::killing) {
    kill_leftovers();
    return finish_output();
  }
  if (phase_ != Phase::stopping) return enter(Phase::leftovers, kOrphanGracePeriod);
  // Programs below a shell that did not wait for them may still be saving.
  if (ranks_.any_group_running()) return;
  signal_descendants(SIGTERM);     // those that have left the groups
  phase_ = Phase::leftovers_term;  // with what is left of --stop-grace
}

void Supervisor::finish_output() {
  output_.finish(ranks_.all());
  ranks_.take_orphans();
  // After a clean end a slow disk is waited for, as by any program.
  phase_ = Phase::writing_logs;
  deadline_.reset();
  if (!verdict_.clean()) enter(Phase::writing_logs, kLogLimit);
}

// The report follows the warnings: its last line says why the job ended.
void Supervisor::finish_logs() {
  SharedOutput& console = output_.console();
  const bool written = output_.logs().idle();
  console.drop_beyond(std::numeric_limits<std::size_t>::max());  // what is told now is no output
  output_.warn_of_logs();
  if (!written) {
    output_.warn(
        fmt::format("the disk of the logs in {} did not answer: they may lack up to {} bytes",
                    job_.folder.log_folder(), output_.logs().missing()));
  }
  report(verdict_, ranks_.all(), job_.placement, job_.options.max_restarts > 0, console);
  deadline_.reset();
  phase_ = Phase::draining;
  const bool patient = verdict_.clean() && written;
  console.finish(patient ? kFullDiskPatience : kDrainLimit / 5);
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
