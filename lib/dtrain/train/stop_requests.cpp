#include "dtrain/train/stop_requests.h"

#include <signal.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <mutex>
#include <utility>

#include "dtrain/base/stop_signals.h"

namespace dtrain::train {
namespace {

// A handler can reach nothing else. Reading and clearing a request is one operation, so that none
// that comes in between is lost.
std::atomic<int> stop_signal = 0;
std::atomic<bool> save_asked = false;
static_assert(decltype(stop_signal)::is_always_lock_free &&
                  decltype(save_asked)::is_always_lock_free,
              "a handler may use nothing that takes a lock");

// The handler's answer to SIGINT: a step may take long, and people press Ctrl-C again when
// nothing happens.
std::atomic<const char*> answer = nullptr;
static_assert(std::atomic<const char*>::is_always_lock_free);
std::atomic<bool> is_interrupted = false;

void ask_to_stop(int signal) {
  stop_signal = signal;
  if (signal != SIGINT) return;
  if (is_interrupted.exchange(true)) base::end_by_signal(SIGINT);
  const char* const text = answer;
  if (text == nullptr) return;
  const int saved_errno = errno;
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, text, std::strlen(text));
  errno = saved_errno;
}
void ask_to_save(int) { save_asked = true; }

// As in every program; but people should know what that means here.
void end_at_once(int signal) {
  constexpr const char* kLine =
      "dtrain: ended by SIGQUIT, which saves nothing; Ctrl-C and SIGTERM save\n";
  if (answer.load() != nullptr) {
    [[maybe_unused]] const auto written = ::write(STDERR_FILENO, kLine, std::strlen(kLine));
  }
  base::end_by_signal(signal);
}

struct Handled {
  int signal;
  const char* name;
  void (*handler)(int);
};

constexpr std::array<Handled, 6> kHandled{{{SIGTERM, "SIGTERM", ask_to_stop},
                                           {SIGUSR1, "SIGUSR1", ask_to_stop},
                                           {SIGINT, "SIGINT", ask_to_stop},
                                           {SIGHUP, "SIGHUP", ask_to_stop},
                                           {SIGQUIT, "SIGQUIT", end_at_once},
                                           {SIGUSR2, "SIGUSR2", ask_to_save}}};

// The process's signal actions before the first StopRequests, and how many there are.
std::mutex users_mutex;
std::int64_t num_users = 0;                                // guarded by users_mutex
std::array<struct sigaction, kHandled.size()> previous{};  // guarded by users_mutex

std::string name_of(int signal) {
  for (const Handled& handled : kHandled) {
    if (handled.signal == signal) return handled.name;
  }
  return "a signal";
}

}  // namespace

StopRequests::StopRequests(Options options) : options_(std::move(options)) {
  const std::lock_guard lock(users_mutex);
  if (options_.answers) {
    constexpr const char* kAnswer =
        "dtrain: stopping after this step and saving; Ctrl-C again ends at once\n";
    constexpr const char* kAnswerOverLiveLine =
        "\r\x1b[Jdtrain: stopping after this step and saving; Ctrl-C again ends at once\n";
    answer = ::isatty(STDERR_FILENO) == 1 ? kAnswerOverLiveLine : kAnswer;
  }
  if (++num_users > 1) return;
  base::tell_stops(nullptr);  // the training tells how it ends
  for (std::size_t index = 0; index < kHandled.size(); ++index) {
    const auto& [signal, name, handler] = kHandled[index];
    ::sigaction(signal, nullptr, &previous[index]);
    const bool may_be_ignored = signal == SIGHUP || signal == SIGQUIT;  // by nohup, by shells
    if (may_be_ignored && base::is_ignored(signal)) continue;
    struct sigaction action {};
    action.sa_handler = handler;
    action.sa_flags = SA_RESTART;
    ::sigaction(signal, &action, nullptr);
  }
  // Whoever started this may have blocked them: then nobody could ask. One that waits arrives here.
  sigset_t handled;
  ::sigemptyset(&handled);
  for (const auto& each : kHandled) ::sigaddset(&handled, each.signal);
  ::pthread_sigmask(SIG_UNBLOCK, &handled, nullptr);
}

StopRequests::~StopRequests() {
  const std::lock_guard lock(users_mutex);
  if (--num_users > 0) return;
  for (std::size_t index = 0; index < kHandled.size(); ++index) {
    ::sigaction(kHandled[index].signal, &previous[index], nullptr);
  }
  stop_signal = 0;
  save_asked = false;
  is_interrupted = false;
  answer = nullptr;
}

std::string StopRequests::reason(int launcher_signal) const {
  const bool is_passed_on = reason_ == name_of(SIGTERM) && launcher_signal != 0;
  return is_passed_on ? name_of(launcher_signal) : reason_;
}

bool StopRequests::take_save() { return save_asked.exchange(false); }

bool StopRequests::wants_stop_now() {
  if (reason_.empty()) {
    if (const int signal = stop_signal; signal != 0) {
      reason_ = name_of(signal);
    } else if (options_.folder != nullptr && options_.folder->stop_requested()) {
      reason_ = "the file " + options_.folder->stop_file();
    }
  }
  return !reason_.empty();
}

bool StopRequests::wants_stop() {
  if (!wants_stop_now() && options_.time_limit_seconds > 0 &&
      base::seconds_since(start_) >= options_.time_limit_seconds) {
    reason_ = "--time-limit";
  }
  return !reason_.empty();
}

}  // namespace dtrain::train
