#include "dtrain/base/suspension.h"

#include <signal.h>

#include <atomic>
#include <cerrno>

#include "dtrain/base/stop_signals.h"

namespace dtrain::base {
namespace {

// Globals, for the signal handler. Other threads may wake before the handler's thread: until it has
// added the stop to `total`, they use `begin`.
std::atomic<Clock::rep> total = 0;
std::atomic<Clock::rep> begin = 0;  // of the current stop; 0: not stopped
static_assert(decltype(total)::is_always_lock_free, "a signal handler must not take a lock");

Clock::rep now() { return Clock::now().time_since_epoch().count(); }

void install(void (*handler)(int)) {
  struct sigaction action {};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART;
  ::sigaction(SIGTSTP, &action, nullptr);
}

// Stops by the default action, which skips orphaned process groups: no shell could continue them.
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
