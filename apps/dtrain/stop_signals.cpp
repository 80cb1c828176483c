#include "stop_signals.h"

#include <signal.h>

#include <array>
#include <atomic>
#include <cstddef>

#include "dtrain/base/process.h"

namespace dtrain::app {
namespace {

constexpr std::array kSignals = {SIGINT, SIGTERM, SIGHUP};

// A handler can reach nothing else.
std::atomic<int> noted = 0;
static_assert(decltype(noted)::is_always_lock_free, "a handler may use nothing that takes a lock");

std::array<struct sigaction, kSignals.size()> previous{};

void note(int signal) {
  if (noted.exchange(signal) != 0) base::end_by_stop(signal);
}

}  // namespace

StopSignals::StopSignals() {
  noted = 0;
  for (std::size_t index = 0; index < kSignals.size(); ++index) {
    ::sigaction(kSignals[index], nullptr, &previous[index]);
    if (previous[index].sa_handler == SIG_IGN) continue;
    struct sigaction action {};
    action.sa_handler = note;
    action.sa_flags = SA_RESTART;
    ::sigaction(kSignals[index], &action, nullptr);
  }
}

StopSignals::~StopSignals() {
  for (std::size_t index = 0; index < kSignals.size(); ++index) {
    ::sigaction(kSignals[index], &previous[index], nullptr);
  }
}

void StopSignals::check() {
  if (noted != 0) throw Stopped{noted};
}

}  // namespace dtrain::app
