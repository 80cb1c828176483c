#include "launcher/attempts.h"

#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <string>

#include "dtrain/base/clock.h"
#include "launcher/error_line.h"
#include "launcher/history.h"
#include "launcher/restart_policy.h"
#include "launcher/signals.h"
#include "launcher/step_clock.h"
#include "launcher/supervisor.h"

namespace launcher {
namespace {

using dtrain::base::Clock;
using Seconds = std::chrono::duration<double>;

/// Takes the signals that have come. Returns the first that asks the job to stop, SIGKILL if the
/// guard is gone; else 0.
int take_request(const GuardLink& guard) {
  std::array<unsigned char, 64> signals;
  const ssize_t count = ::read(guard.signals.get(), signals.data(), signals.size());
  if (count == 0) return SIGKILL;
  for (ssize_t i = 0; i < count; ++i) {
    const int signal = signals[static_cast<std::size_t>(i)];
    if (asks_to_stop(signal)) return signal;
  }
  return 0;
}

/// Waits until the time has passed or a signal asks the job to stop, which is returned; else 0.
int wait_for_request(const GuardLink& guard, Seconds wait) {
  const auto end = Clock::now() + std::chrono::duration_cast<Clock::duration>(wait);
  for (;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - Clock::now()).count();
    pollfd entry{guard.signals.get(), POLLIN, 0};
    const int ready = ::poll(&entry, 1, static_cast<int>(std::max<std::int64_t>(0, left)));
    if (ready > 0) {
      if (const int request = take_request(guard); request != 0) return request;
    } else if (ready == 0 || errno != EINTR) {
      return 0;
    }
  }
}

void prepare_restart(PreparedJob& job, const AttemptEnd& end) {
  ++job.attempt;
  job.restart_reason = end.how;
  job.folder.begin_attempt(job.attempt);
  if (job.options.master_port == 0) {  // the last attempt's may still be in use somewhere
    job.port = {};
    job.port = reserve_port(job.options.master_addr, 0);
  }
  job.door = make_door();
}

void say(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += "dtrun: " + line + "\n";
  if (!text.empty()) write_error_for_a_while(text);
}

void report(History& history, const StepClock& steps, Clock::time_point start,
            const std::string& why_not) {
  history.useful = steps.useful();
  history.wall = Clock::now() - start;
  std::vector<std::string> lines = history_lines(history);
  if (!why_not.empty()) lines.push_back(no_restart_line(history, why_not));
  say(lines);
}

}  // namespace

int run_attempts(PreparedJob job, GuardLink guard) {
  const Options& options = job.options;
  RestartPolicy policy({.max_restarts = options.max_restarts, .backoff = options.restart_backoff});
  StepClock steps;
  History history;
  const auto start = Clock::now();
  for (;;) {
    history.attempts.push_back(Supervisor(job, guard, steps).run());
    AttemptEnd& end = history.attempts.back();
    RestartDecision decision = policy.after(end);
    if (decision.restarts) {
      say({restart_line(end, decision, policy, options.max_restarts)});
      const int request = wait_for_request(guard, decision.wait);
      if (request != 0) decision = policy.stopped_by(request);
    }
    if (!decision.restarts) {
      report(history, steps, start, decision.why_not);
      return end.status;
    }
    try {
      prepare_restart(job, end);
    } catch (...) {  // the error's line follows
      report(history, steps, start, "");
      throw;
    }
  }
}

}  // namespace launcher
