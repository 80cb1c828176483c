#include "dtrain/base/stop_signals.h"

#include <signal.h>
#include <unistd.h>

#include <initializer_list>

namespace dtrain::base {

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
    action.sa_handler = [](int number) { end_by_signal(number); };
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
