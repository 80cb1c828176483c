#include "stop_signals.h"

#include <signal.h>

#include <atomic>
#include <csignal>

namespace dtrain::app {
namespace {

constexpr int kSignals[] = {SIGINT, SIGTERM, SIGHUP};

// A handler can reach nothing else.
std::atomic<int> noted = 0;
static_assert(decltype(noted)::is_always_lock_free, "a handler may use nothing that takes a lock");

void note(int signal) { noted = signal; }

}  // namespace

StopSignals::StopSignals() {
  noted = 0;
  for (const int signal : kSignals) {
    struct sigaction action {};
    ::sigaction(signal, nullptr, &action);
    if (action.sa_handler == SIG_IGN) continue;
    action = {};
    action.sa_handler = note;
    action.sa_flags = SA_RESTART | static_cast<int>(SA_RESETHAND);
    ::sigaction(signal, &action, nullptr);
  }
}

StopSignals::~StopSignals() {
  for (const int signal : kSignals) {
    struct sigaction action {};
    ::sigaction(signal, nullptr, &action);
    if (action.sa_handler == note) ::signal(signal, SIG_DFL);
  }
}

void StopSignals::check() {
  if (noted != 0) throw Stopped{noted};
}

int end_by(const Stopped& stopped) {
  std::raise(stopped.signal);
  constexpr int kStatusOfSignals = 128;
  return kStatusOfSignals + stopped.signal;
}

}  // namespace dtrain::app
