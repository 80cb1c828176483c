#include "dtrain/train/stop_requests.h"

#include <signal.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <utility>

namespace dtrain::train {
namespace {

// A handler can reach nothing else. Written by handlers, read and cleared by poll().
volatile std::sig_atomic_t stop_signal = 0;
volatile std::sig_atomic_t save_signal = 0;

// What the handler writes on SIGINT: a step may take long, and people press Ctrl-C again when
// nothing happens.
std::atomic<const char*> answer = nullptr;
static_assert(std::atomic<const char*>::is_always_lock_free);

void ask_to_stop(int signal) {
  stop_signal = signal;
  const char* const text = answer;
  if (signal != SIGINT || text == nullptr) return;
  const int saved_errno = errno;
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, text, std::strlen(text));
  errno = saved_errno;
}
void ask_to_save(int signal) { save_signal = signal; }

struct Handled {
  int signal;
  const char* name;
  void (*handler)(int);
  int flags;  // of sigaction
};

constexpr std::array<Handled, 4> kHandled{
    {{SIGTERM, "SIGTERM", ask_to_stop, SA_RESTART},
     {SIGUSR1, "SIGUSR1", ask_to_stop, SA_RESTART},
     {SIGINT, "SIGINT", ask_to_stop, static_cast<int>(SA_RESTART | SA_RESETHAND)},
     {SIGUSR2, "SIGUSR2", ask_to_save, SA_RESTART}}};

std::string name_of(int signal) {
  for (const Handled& handled : kHandled) {
    if (handled.signal == signal) return handled.name;
  }
  return "a signal";
}

}  // namespace

StopRequests::StopRequests(Options options) : options_(std::move(options)) {
  if (options_.answers) {
    constexpr const char* kAnswer =
        "dtrain: stopping after this step and saving; Ctrl-C again ends at once\n";
    constexpr const char* kAnswerOverLiveLine =
        "\r\x1b[Jdtrain: stopping after this step and saving; Ctrl-C again ends at once\n";
    answer = ::isatty(STDERR_FILENO) == 1 ? kAnswerOverLiveLine : kAnswer;
  }
  for (const Handled& handled : kHandled) {
    struct sigaction action {};
    action.sa_handler = handled.handler;
    action.sa_flags = handled.flags;
    ::sigaction(handled.signal, &action, nullptr);
  }
}

StopRequests::~StopRequests() {
  for (const Handled& handled : kHandled) ::signal(handled.signal, SIG_DFL);
  stop_signal = 0;
}

Requests StopRequests::poll() {
  if (reason_.empty()) {
    if (const int signal = stop_signal; signal != 0) {
      reason_ = name_of(signal);
    } else if (options_.time_limit_seconds > 0 &&
               base::seconds_since(start_) >= options_.time_limit_seconds) {
      reason_ = "--time-limit";
    } else if (!options_.stop_file.empty() && ::access(options_.stop_file.c_str(), F_OK) == 0) {
      reason_ = "the file " + options_.stop_file;
    }
  }
  const bool save = save_signal != 0;
  save_signal = 0;
  return {.stop = !reason_.empty(), .save = save};
}

}  // namespace dtrain::train
