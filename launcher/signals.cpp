#include "launcher/signals.h"

#include <fmt/format.h>
#include <signal.h>
#include <string.h>

#include <algorithm>

#include "dtrain/base/number.h"

namespace launcher {

std::string signal_name(int signal) {
  const char* const name = ::sigabbrev_np(signal);
  return name != nullptr ? fmt::format("SIG{}", name) : std::to_string(signal);
}

int signal_in(std::string_view text) {
  constexpr int kMostSignal = 64;
  const auto signal = dtrain::base::number_in<int>(text);
  return signal && *signal > 0 && *signal <= kMostSignal ? *signal : 0;
}

bool asks_to_stop(int signal) {
  constexpr int kRequests[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1};
  return std::ranges::count(kRequests, signal) > 0;
}

void stop_until_continued() {
  sigset_t stop;
  ::sigemptyset(&stop);
  ::sigaddset(&stop, SIGTSTP);
  ::raise(SIGTSTP);
  ::sigprocmask(SIG_UNBLOCK, &stop, nullptr);  // stops here
  ::sigprocmask(SIG_BLOCK, &stop, nullptr);
}

}  // namespace launcher
