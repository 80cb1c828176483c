#include "dtrain/base/suspension.h"

#include <signal.h>

#include <atomic>
#include <cerrno>

#include "dtrain/base/stop_signals.h"

namespace dtrain::base {
namespace {

// A handler can reach nothing else. Other threads wake before the handler's does: until it has
// counted a stop they find its begin.
std::atomic<Clock::rep> total = 0;
std::atomic<Clock::rep> begin = 0;  // of the stop under way; 0: there is none
static_assert(decltype(total)::is_always_lock_free, "a handler may use nothing that takes a lock");

Clock::rep now() { return Clock::now().time_since_epoch().count(); }

void install(void (*handler)(int)) {
  struct sigaction action {};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART;
  ::sigaction(SIGTSTP, &action, nullptr);
}

// By the signal's default, which spares a process that nobody could continue.
void stop(int signal) {
  const int saved_errno = errno;
  sigset_t own;
  sigset_t before;
  ::sigemptyset(&own);
  ::sigaddset(&own, signal);
  begin = now();
  install(SIG_DFL);
  ::raise(signal);
  ::pthread_sigmask(SIG_UNBLOCK, &own, &before);  // stops here
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  install(stop);
  total += now() - begin;
  begin = 0;
  errno = saved_errno;
}

}  // namespace

void count_suspensions() noexcept {
  if (!is_ignored(SIGTSTP)) install(stop);
}

Clock::duration suspended_time() noexcept {
  const Clock::rep since = begin;
  return Clock::duration(total + (since == 0 ? 0 : now() - since));
}

}  // namespace dtrain::base
