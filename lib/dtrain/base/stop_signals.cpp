#include "dtrain/base/stop_signals.h"

#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <initializer_list>

namespace dtrain::base {
namespace {

// A handler can reach nothing else.
std::atomic<const char*> rest_of_line = nullptr;
std::atomic<StopLine> kind_of_line = StopLine::with_signal;
static_assert(std::atomic<const char*>::is_always_lock_free);
static_assert(std::atomic<StopLine>::is_always_lock_free);

// One write() call, so that lines of several ranks do not interleave. Nothing is written to a full
// pipe, which would block the end of the process.
void write_stop_line(int signal, const char* rest) noexcept {
  std::array<char, 256> line{};
  std::size_t size = 0;
  const bool names_signal = kind_of_line == StopLine::with_signal;
  for (const char* part : {"dtrain: stopped", names_signal ? " by SIG" : "",
                           names_signal ? ::sigabbrev_np(signal) : "", rest, "\n"}) {
    const std::size_t length = std::min(std::strlen(part), line.size() - size);
    std::memcpy(line.data() + size, part, length);
    size += length;
  }
  pollfd output{.fd = STDERR_FILENO, .events = POLLOUT, .revents = 0};
  if (::poll(&output, 1, 0) != 1) return;
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, line.data(), size);
}

}  // namespace

void tell_stops(const char* rest, StopLine line) noexcept {
  kind_of_line = line;
  rest_of_line = rest;
}

void end_by_stop(int signal) noexcept {
  if (const char* const rest = rest_of_line) write_stop_line(signal, rest);
  end_by_signal(signal);
}

bool is_ignored(int signal) noexcept {
  struct sigaction action {};
  return ::sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

void end_on_stop_signals() noexcept {
  sigset_t deaf;
  ::sigemptyset(&deaf);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1}) {
    // A pending SIGUSR1 for train::StopRequests must not end a run (process.h).
    if (signal != SIGUSR1) ::sigaddset(&deaf, signal);
    if (is_ignored(signal)) continue;
    struct sigaction action {};
    action.sa_handler = end_by_stop;
    ::sigaction(signal, &action, nullptr);
  }
  ::pthread_sigmask(SIG_UNBLOCK, &deaf, nullptr);
}

void end_by_signal(int signal) noexcept {
  struct sigaction standard {};
  standard.sa_handler = SIG_DFL;
  ::sigaction(signal, &standard, nullptr);
  sigset_t own;
  ::sigemptyset(&own);
  ::sigaddset(&own, signal);
  ::pthread_sigmask(SIG_UNBLOCK, &own, nullptr);  // the signal is blocked in its own handler
  ::raise(signal);
  constexpr int kStatusOfSignals = 128;
  ::_exit(kStatusOfSignals + signal);
}

}  // namespace dtrain::base
