#include "launcher/supervisor.h"

#include <fmt/format.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "dtrain/base/overloaded.h"
#include "launcher/local/processes.h"
#include "launcher/output/live_line.h"
#include "launcher/output/output_writer.h"

namespace launcher {
namespace {

using namespace std::chrono_literals;
using Source = Event::Source;

constexpr auto kSuspendWindow = 200ms;
constexpr std::size_t kMaxControlText = 8192;

void watch_output(const EventLoop& loop, std::span<const Rank> ranks, bool watches) {
  for (const Rank& rank : ranks) {
    for (const auto& [stream, source] : {std::pair(&rank.output, Source::rank_output),
                                         std::pair(&rank.error, Source::rank_error)}) {
      if (!stream->open()) continue;
      if (watches) {
        loop.watch(stream->fd(), {.source = source, .rank = rank.index});
      } else {
        loop.unwatch(stream->fd());
      }
    }
  }
}

}  // namespace

Supervisor::Supervisor(PreparedJob& job, const WatchdogLink& watchdog, StepClock& steps,
                       Stragglers& stragglers)
    : job_(job),
      watchdog_(watchdog),
      steps_(steps),
      output_(job.options, job.folder.log_folder()),
      state_(job.options, job.placement),
      ranks_(state_.ranks),
      nodes_(job.nodes, job.placement),
      judge_(state_, stragglers),
      stops_(state_, judge_),
      node_events_(state_, judge_, stops_, nodes_),
      shutdown_(state_, ranks_, output_, [this] {
        for (Rank& rank : state_.ranks.own()) on_rank_end(rank);
        ranks_.reap_orphans(clock_.now().ns, state_.verdict.stop_signal != 0);
      }) {
  adopt_orphans();
  steps.begin_attempt();
  stragglers.begin_attempt();
  loop_.watch(watchdog_.signals.get(), {.source = Source::signals});
  loop_.watch(output_.console().waker()->fd(), {.source = Source::console});
  loop_.watch(nodes_.fd(), {.source = Source::nodes});
}

AttemptResult Supervisor::run() {
  start_ranks();
  nodes_.report_started(state_.ranks.own());
  handle({.source = Source::nodes});  // events that were put back make no descriptor readable
  while (!shutdown_.is_done()) {
    wait_for_events();
    advance();
  }
  return attempt_result(state_.verdict, state_.ranks.all(), clock_.start(), steps_);
}

void Supervisor::start_ranks() {
  ranks_.start(job_, watchdog_.original_mask, output_.logs());
  job_.rendezvous = {};  // only the ranks keep the socket, so that each notices when another ends
  for (const Rank& rank : state_.ranks.own()) {
    loop_.watch(rank.pidfd.get(), {.source = Source::rank_end, .rank = rank.index});
    loop_.watch(rank.control.get(), {.source = Source::rank_control, .rank = rank.index});
  }
  watch_output(loop_, state_.ranks.own(), true);
  if (!job_.binding.masks.empty() && job_.attempt == 0) {
    output_.say(describe(job_.options.bind, job_.binding, job_.placement.own().first_rank));
  }
  if (const std::string folder = job_.folder.log_folder(); !folder.empty()) {
    output_.say("logs of the ranks: " + folder);
  }
}

void Supervisor::wait_for_events() {
  std::optional<Moment::Time> next;
  const auto include = [&next](std::optional<Moment::Time> time) {
    if (time) next = std::min(next.value_or(Moment::Time::max()), *time);
  };
  include(state_.deadline);
  include(shutdown_.deadline());
  const bool has_deadline = next.has_value();
  if (stops_.watches_heartbeats(output_.has_back_pressure())) include(judge_.hangs().next_check());
  if (next) next = clock_.on_wall(*next);
  const bool watches_ranks =
      state_.is_undisturbed() &&
      (output_.has_startup_errors() || judge_.hangs().watches_any() || !stops_.stopped().empty());
  if (watches_ranks || has_deadline) {
    include(dtrain::base::Clock::now() + ActiveClock::kMostBetweenCalls);
  }
  const std::vector<Event> events = loop_.wait(next);
  clock_.now();  // before any event is judged: this process may have been stopped
  for (const Event& event : events) handle(event);
}

void Supervisor::handle(const Event& event) {
  Rank& rank = state_.ranks.at(event.rank);
  switch (event.source) {
    case Source::signals:
      return on_signals();
    case Source::child_stops:
      return on_child_stops();
    case Source::console:
      return output_.console().waker()->clear();  // advance() continues to write
    case Source::nodes: {
      std::vector<NodeEvent> events = nodes_.take();
      auto next = events.begin();
      for (; next != events.end() && nodes_.is_open(); ++next) {
        node_events_.handle(*next, output_.has_back_pressure(), clock_.now());
        carry_out_decisions();
      }
      events.erase(events.begin(), next);
      return nodes_.put_back(std::move(events));  // they belong to what follows this attempt
    }
    case Source::rank_end:
      return on_rank_end(rank);
    case Source::rank_control:
      on_control(rank);
      return;
    case Source::rank_error:
      return output_.read(rank.error);
    case Source::rank_output:
      while (on_control(rank)) {  // messages about the output precede it
      }
      return output_.read(rank.output);
  }
}

void Supervisor::advance() {
  const Moment now = clock_.now();
  ranks_.reap_orphans(now.ns, state_.verdict.stop_signal != 0);
  if (state_.deadline && now.active >= *state_.deadline) judge_.deadline_passed(now);
  carry_out_decisions();
  stops_.check_stopped_ranks(now);
  carry_out_decisions();
  if (state_.phase == Phase::running && output_.has_startup_errors()) {
    output_.show_old_startup_errors(has_begun(state_.ranks.all()));
  }
  if (stops_.watches_heartbeats(output_.has_back_pressure())) judge_.check_silence(now);
  carry_out_decisions();
  const bool has_ended = state_.phase < Phase::shutdown && !state_.ranks.any_running() &&
                         node_events_.all_nodes_done(ranks_, now);
  carry_out_decisions();
  if (has_ended) shutdown_.begin(now);
  shutdown_.advance(clock_.now());
  // Ranks that save or exit must not wait for a reader or a disk.
  const bool ends = !state_.verdict.clean() || state_.phase == Phase::exiting;
  if (output_.update_back_pressure(ends) && !shutdown_.has_taken_output()) {
    if (!output_.has_back_pressure()) judge_.reset_hang_timers(now);
    carry_out_decisions();
    watch_output(loop_, state_.ranks.own(), !output_.has_back_pressure());
  }
  shutdown_.check_drained();
}

void Supervisor::carry_out_decisions() {
  while (!state_.decisions.empty()) {
    for (const Decision& decision : state_.take_decisions()) carry_out(decision);
  }
}

void Supervisor::carry_out(const Decision& decision) {
  const auto close_nodes = [this](bool answers_heartbeats) {
    nodes_.close();
    if (!answers_heartbeats) loop_.unwatch(nodes_.fd());
  };
  RankTable& table = state_.ranks;
  std::visit(
      dtrain::base::Overloaded{
          [&](const Say& say) { output_.say(say.text); },
          [&](const SignalRanks& order) { ranks_.signal_groups(order.signals, order.line); },
          [&](const KillRanks&) { ranks_.kill(); },
          [&](const NotifyRanks& order) { ranks_.notify(order.signal); },
          [&](const RequestRecords& request) {
            for (const int rank : request.ranks) LocalRanks::send_line(table.at(rank), "records\n");
          },
          [&](const ReportRank& r) { nodes_.report_rank(table.at(r.rank), output_.console()); },
          [&](const SendToNodes& message) { nodes_.send_to_all(message.kind, message.body); },
          [&](const SendToCoordinator& message) {
            nodes_.send_to_coordinator(message.kind, message.body);
          },
          [&](const SendStopRequest& request) { nodes_.send_stop_request(request.signal); },
          [&](const AnnounceResult&) {
            const JobResult result = job_result(state_.verdict, table.all(), job_.placement);
            nodes_.send_to_all(NodeMessage::finish, encode(result));
            close_nodes(false);
          },
          [&](const CloseNodeLink& close) { close_nodes(close.answers_heartbeats); },
          [&](const BeginShutdown&) { shutdown_.begin(clock_.now()); },
          [&](const HurryShutdown& hurry) { shutdown_.hurry(hurry.kills, clock_.now()); }},
      decision);
}

void Supervisor::on_signals() {
  std::array<unsigned char, 64> signals;
  const ssize_t count = ::read(watchdog_.signals.get(), signals.data(), signals.size());
  if (count == 0) {  // the watchdog was killed, so no process waits for a status
    kill_descendants(1s);
    write_error_for_a_while(own_prefix(job_.options) + "was killed; all its ranks were ended\n");
    state_.verdict.request = SIGKILL;
    shutdown_.abandon();
  }
  for (ssize_t i = 0; i < count; ++i) {
    const int signal = signals[static_cast<std::size_t>(i)];
    if (signal == SIGWINCH) {
      output_.console().redraw();
      const Rank& first = state_.ranks.at(0);
      const int columns = first.error.columns_left(terminal_columns());
      LocalRanks::send_line(first, fmt::format("columns {}\n", columns));
    } else {
      stops_.user_signal(signal, clock_.now());
      carry_out_decisions();
    }
  }
}

void Supervisor::on_child_stops() {
  StoppedRanks& stopped = stops_.stopped();
  for (const ChildStop& stop : loop_.take_child_stops()) {
    const std::span<Rank> own = state_.ranks.own();
    const auto rank = std::ranges::find(own, stop.pid, &Rank::pid);
    if (rank == own.end() || !rank->running()) continue;
    if (stop.continued) {
      stopped.remove(rank->index);
      continue;
    }
    // A suspension may stop the rank before the watchdog has passed the signal on.
    const bool may_be_suspension = stopped.may_be_suspension(stop.signal);
    if (may_be_suspension && is_readable_within(watchdog_.signals, kSuspendWindow)) on_signals();
    if (stopped.is_suspended()) continue;
    if (stopped.is_late_suspension(stop.signal)) {
      ::kill(-rank->pid, SIGCONT);
    } else {
      stopped.add(rank->index, clock_.now().active);
    }
  }
}

void Supervisor::on_rank_end(Rank& rank) {
  auto end = LocalRanks::reap(rank);
  if (!end) return;
  loop_.unwatch(rank.pidfd.get());
  while (on_control(rank)) {  // its last messages may not have been read yet
  }
  const Moment now = clock_.now();
  end->time_ns = now.ns;
  rank.end = end;
  nodes_.report_rank(rank, output_.console());
  if (state_.is_coordinator()) judge_.rank_ended(rank, now);
  carry_out_decisions();
}

// Returns whether a message was read.
bool Supervisor::on_control(Rank& rank) {
  std::array<char, kMaxControlText> buffer;
  const ssize_t length = ::recv(rank.control.get(), buffer.data(), buffer.size(), MSG_DONTWAIT);
  if (length < 0 && (errno == EAGAIN || errno == EINTR)) return false;
  if (length <= 0) {  // a program that does not know the descriptor may close it
    loop_.unwatch(rank.control.get());
    return false;
  }
  const std::string_view bytes(buffer.data(), static_cast<std::size_t>(length));
  const std::int64_t signs = rank.heartbeats;
  const std::int64_t step = rank.step;
  if (read_control(rank, bytes)) {
    output_.show_reported_error(rank, state_.ranks.own(), has_begun(state_.ranks.all()));
  }
  const Moment now = clock_.now();
  nodes_.report_progress(rank, now.ns);
  if (rank.heartbeats != signs) judge_.heartbeat(rank, step, now);
  if (rank.records.is_complete && !rank.records.text.empty()) {
    nodes_.report_records(rank);
    judge_.records_arrived(now);
  }
  carry_out_decisions();
  if (rank.index == 0 && steps_.report(rank.step, dtrain::base::Clock::now())) {
    LocalRanks::send_line(rank, fmt::format("recovered {:.3f}\n", steps_.recovery()->count()));
  }
  return true;
}

}  // namespace launcher
