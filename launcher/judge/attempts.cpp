#include "launcher/judge/attempts.h"

#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <exception>
#include <future>
#include <string>
#include <variant>
#include <vector>

#include "dtrain/base/clock.h"
#include "dtrain/base/error.h"
#include "dtrain/base/io/file_system.h"
#include "dtrain/base/text/number.h"
#include "launcher/clocks.h"
#include "launcher/environment.h"
#include "launcher/judge/restarts.h"
#include "launcher/judge/stragglers.h"
#include "launcher/local/processes.h"
#include "launcher/output/output_writer.h"
#include "launcher/supervisor.h"

namespace launcher {
namespace {

using dtrain::base::Clock;

/// Reads the pending signals. Returns the first that asks the job to stop, SIGKILL if the watchdog
/// has exited, or 0.
int take_stop_request(const WatchdogLink& watchdog) {
  pollfd entry{watchdog.signals.get(), POLLIN, 0};
  if (::poll(&entry, 1, 0) <= 0) return 0;
  std::array<unsigned char, 64> signals;
  const ssize_t count = ::read(watchdog.signals.get(), signals.data(), signals.size());
  if (count == 0) return SIGKILL;
  for (ssize_t i = 0; i < count; ++i) {
    const int signal = signals[static_cast<std::size_t>(i)];
    if (asks_to_stop(signal)) return signal;
  }
  return 0;
}

/// Waits until the watchdog or another launcher sends something; at most `wait_ms`, if that is not
/// negative.
void wait_for_activity(const PreparedJob& job, const WatchdogLink& watchdog, int wait_ms) {
  std::array<pollfd, 2> entries = {{{watchdog.signals.get(), POLLIN, 0}, {-1, POLLIN, 0}}};
  entries[1].fd = job.nodes->fd();
  ::poll(entries.data(), entries.size(), wait_ms);
}

/// Applies an event of a node between attempts, which may withdraw the restart.
RestartDecision withdrawn_by(const NodeEvent& event, RestartPolicy& policy) {
  if (event.loss) return policy.withdraw(fmt::format("node {} is lost", event.node));
  const int signal = event.kind == NodeMessage::stop ? signal_in(event.body) : 0;
  return signal != 0 ? policy.stopped_by(signal) : RestartDecision{.restarts = true};
}

/// Waits for the back-off. Returns the decision, or another one if a signal or a node withdrew it.
RestartDecision wait_before_restart(const PreparedJob& job, const WatchdogLink& watchdog,
                                    RestartDecision decision, RestartPolicy& policy) {
  const auto end = Clock::now() + std::chrono::duration_cast<Clock::duration>(decision.wait);
  for (;;) {
    if (const int request = take_stop_request(watchdog); request != 0)
      return policy.stopped_by(request);
    for (const NodeEvent& event : job.nodes->take()) {
      RestartDecision other = withdrawn_by(event, policy);
      if (!other.restarts) return other;
    }
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - Clock::now()).count();
    if (left <= 0) return decision;
    wait_for_activity(job, watchdog, static_cast<int>(left));
  }
}

void say(const Options& options, const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += own_prefix(options) + line + "\n";
  if (!text.empty()) write_error_for_a_while(text);
}

/// Begins another attempt; node 0 orders the other launchers to do the same.
void begin_attempt(PreparedJob& job, const RestartOrder& order) {
  job.attempt = order.attempt;
  job.restart_reason = order.reason;
  job.committed = order.committed;
  job.placement.master_port = order.master_port;
  job.nodes->begin_attempt(job.attempt);
  // Precedes the log folders, whose disk may be slow: other nodes tolerate a longer silence of a
  // launcher that starts its ranks than of one between attempts.
  if (job.placement.node_rank == 0) job.nodes->send_to_all(NodeMessage::restart, encode(order));
  const std::string why_no_logs = job.folder.begin_attempt(job.attempt);
  if (!why_no_logs.empty()) say(job.options, {"warning: " + why_no_logs});
}

/// Prepares the next attempt.
void prepare_restart(PreparedJob& job, const AttemptResult& end, const CommittedSteps& committed) {
  // The last attempt's port may still be in use. With several nodes --master-port is the dtruns'.
  const bool is_from_user = job.options.master_port != 0 && !job.placement.has_several_nodes();
  if (!is_from_user) job.port = reserve_port(job.placement.master_addr, 0);
  const RestartOrder order{.attempt = job.attempt + 1,
                           .master_port = job.port.port,
                           .reason = end.how,
                           .committed = committed.text()};
  begin_attempt(job, order);
  if (!job.placement.has_several_nodes()) job.rendezvous = make_rendezvous_socket();
}

/// The exit status of a job that is over, or the order for another attempt.
using NextStep = std::variant<int, RestartOrder>;

/// Waits for node 0's decision after an attempt that ended with `status`. Forwards signals to node
/// 0.
NextStep wait_for_order(const PreparedJob& job, const WatchdogLink& watchdog, int status) {
  bool is_aborted = false;  // node 0 could not prepare another attempt; `finish` follows
  for (;;) {
    const std::vector<NodeEvent> events = job.nodes->take();
    for (auto event = events.begin(); event != events.end(); ++event) {
      if (event->kind == NodeMessage::over) {
        return dtrain::base::number_in<int>(event->body).value_or(status);
      }
      if (event->kind == NodeMessage::abort) is_aborted = true;
      if (event->kind == NodeMessage::finish && is_aborted) {
        const auto decision = decode_result(event->body);
        if (!decision) return status;
        say(job.options, {decision->line});
        return decision->status;
      }
      if (event->kind != NodeMessage::restart) continue;
      const auto order = decode_restart(event->body);
      if (!order) return status;
      job.nodes->put_back({std::next(event), events.end()});  // they belong to the next attempt
      return *order;
    }
    if (!job.nodes->has_peers()) return status;
    const int request = take_stop_request(watchdog);
    if (request == SIGKILL) return status;
    if (request != 0) job.nodes->send(0, NodeMessage::stop, std::to_string(request));
    wait_for_activity(job, watchdog, -1);
  }
}

/// Prints how a restarted job ended: the last line so far is that of a failed attempt.
void say_end(const PreparedJob& job, int status) {
  say(job.options, {fmt::format("the job ended with status {} after {} restart{}", status,
                                job.attempt, job.attempt == 1 ? "" : "s")});
}

/// Runs the job on a node other than node 0, which decides about restarts.
int run_following_node(PreparedJob& job, const WatchdogLink& watchdog) {
  StepClock steps;
  Stragglers stragglers;
  for (;;) {
    const AttemptResult end = Supervisor(job, watchdog, steps, stragglers).run();
    // Node 0 may not know of a stop request that came while the job was ending.
    if (asks_to_stop(end.request)) {
      job.nodes->send(0, NodeMessage::stop, std::to_string(end.request));
    }
    const NextStep next = wait_for_order(job, watchdog, end.status);
    if (const int* status = std::get_if<int>(&next)) {
      if (job.attempt > 0 && !end.has_failed) say_end(job, *status);
      return *status;
    }
    const auto& order = std::get<RestartOrder>(next);
    say(job.options, {fmt::format("restart {}: {}", order.attempt, order.reason)});
    begin_attempt(job, order);
  }
}

void report(const Options& options, History& history, const StepClock& steps,
            Clock::time_point start, const std::string& why_not) {
  history.useful = steps.useful();
  history.wall = Clock::now() - start;
  std::vector<std::string> lines = history_lines(history);
  if (!why_not.empty()) {
    const std::string advice = newest_checkpoint(history).resume_advice;
    if (!advice.empty()) lines.push_back(advice);
    lines.push_back(no_restart_line(history, why_not));
  }
  say(options, lines);
}

/// How the last attempt ended, and why no other follows; empty: nothing failed, or restarts are
/// off.
struct JobOutcome {
  int status = 0;
  std::string why_not;
};

void write_report_file(const PreparedJob& job, const History& history, const JobOutcome& last) {
  const std::string& path = job.options.report_file;
  if (path.empty()) return;
  try {
    dtrain::base::write_atomically(path, dtrain::base::ErrorKind::usage,
                                   report_text(history, job.placement, last.status, last.why_not));
  } catch (const dtrain::base::Error& error) {
    say(job.options, {fmt::format("warning: --report-file: {}", error.what())});
  }
}

/// Writes a file while answering the other launchers' heartbeats, however slow its disk is.
///
/// Throws: as write_atomically.
void write_beside_heartbeats(const PreparedJob& job, const std::string& path,
                             const std::string& text) {
  constexpr std::chrono::milliseconds kBetweenChecks(100);
  std::future<void> done = std::async(std::launch::async, [&] {
    dtrain::base::write_atomically(path, dtrain::base::ErrorKind::checkpoint, text);
  });
  while (done.wait_for(kBetweenChecks) == std::future_status::timeout) {
    (void)job.nodes->take();  // discards the messages: the job is over
  }
  done.get();
}

/// Ends a job that was asked to stop instead of restarting: writes the run's requeue file, as
/// dtrain does when it stops. Returns the job's status, or the failure's status if writing fails.
int end_interrupted(const PreparedJob& job, const History& history, RestartDecision& decision,
                    std::int64_t committed) {
  using dtrain::base::ErrorKind;
  using dtrain::base::fail;
  try {
    const std::string path = newest_checkpoint(history).requeue_file;
    if (path.empty()) fail(ErrorKind::checkpoint, "the program did not name a requeue-file");
    write_beside_heartbeats(job, path,
                            fmt::format("stopped after step {} by {}\n", committed,
                                        signal_name(decision.interrupted_by)));
  } catch (const dtrain::base::Error& error) {
    say(job.options, {fmt::format("warning: the job cannot be requeued: {}", error.what())});
    return history.attempts.back().status;
  }
  decision.why_not += fmt::format("; it resumes after step {}", committed);
  const bool in_slurm = !environment_value("SLURM_JOB_ID").empty();
  return in_slurm ? 0 : static_cast<int>(ErrorKind::interrupted);
}

/// Returns whether a failure to start the ranks may be transient: the storage may recover, or other
/// programs may end. The other nodes see such a failure as the loss of this node.
bool may_start_later(const PreparedJob& job, const dtrain::base::Error& error) {
  using dtrain::base::ErrorKind;
  const bool is_transient =
      error.kind() == ErrorKind::checkpoint || error.kind() == ErrorKind::memory;
  return is_transient && job.options.max_restarts > 0 && !job.placement.has_several_nodes();
}

/// Runs one attempt. The history includes attempts that cannot start their ranks.
void run_attempt(PreparedJob& job, const WatchdogLink& watchdog, StepClock& steps,
                 Stragglers& stragglers, std::vector<AttemptResult>& attempts) {
  const auto start = Clock::now();
  const auto add_failure = [&]() -> AttemptResult& {
    AttemptResult& end = attempts.emplace_back();
    end.how = "did not start";
    end.has_failed = true;
    end.duration = Clock::now() - start;
    return end;
  };
  try {
    attempts.push_back(Supervisor(job, watchdog, steps, stragglers).run());
  } catch (const dtrain::base::Error& error) {
    add_failure().status = error.exit_status();
    if (!may_start_later(job, error)) throw;
    say(job.options, {fmt::format("error: {}", error.what())});
  } catch (...) {
    add_failure();
    throw;
  }
}

/// Runs attempts until no restart follows, as the coordinator.
JobOutcome run_coordinator(PreparedJob& job, const WatchdogLink& watchdog, StepClock& steps,
                           History& history) {
  const Options& options = job.options;
  Stragglers stragglers;
  RestartPolicy policy({.max_restarts = options.max_restarts, .backoff = options.restart_backoff});
  for (;;) {
    run_attempt(job, watchdog, steps, stragglers, history.attempts);
    const AttemptResult& end = history.attempts.back();
    RestartDecision decision = policy.decide(end);
    if (decision.restarts) {
      say(options, {restart_line(end, decision, policy, options.max_restarts)});
      decision = wait_before_restart(job, watchdog, decision, policy);
    }
    if (!decision.restarts) {
      const int status = decision.interrupted_by != 0
                             ? end_interrupted(job, history, decision, policy.committed())
                             : end.status;
      job.nodes->send_to_all(NodeMessage::over, std::to_string(status));
      return {.status = status, .why_not = decision.why_not};
    }
    prepare_restart(job, end, policy.committed_steps());
  }
}

}  // namespace

int run_attempts(PreparedJob job, WatchdogLink watchdog) {
  if (job.placement.node_rank != 0) return run_following_node(job, watchdog);
  StepClock steps;
  History history;
  const auto start = Clock::now();
  JobOutcome last;
  std::exception_ptr failure;  // its line is printed after the report
  try {
    last = run_coordinator(job, watchdog, steps, history);
  } catch (const std::exception& error) {
    const auto* const known = dynamic_cast<const dtrain::base::Error*>(&error);
    last.status = static_cast<int>(known ? known->kind() : dtrain::base::ErrorKind::internal);
    failure = std::current_exception();
  }
  report(job.options, history, steps, start, last.why_not);
  write_report_file(job, history, last);
  if (failure) std::rethrow_exception(failure);
  return last.status;
}

}  // namespace launcher
