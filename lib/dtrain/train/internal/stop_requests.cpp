#include "dtrain/train/internal/stop_requests.h"

#include <signal.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <system_error>
#include <utility>

#include "dtrain/base/host/process.h"

namespace dtrain::train {
namespace {

// Globals, since a handler has no other access. Atomic exchange reads and clears a request, so that
// none is lost in between.
std::atomic<int> stop_signal = 0;
std::atomic<bool> save_requested = false;
static_assert(decltype(stop_signal)::is_always_lock_free &&
                  decltype(save_requested)::is_always_lock_free,
              "a handler may use nothing that takes a lock");

// Acknowledgements by the handlers: a step may take long, and without them people press Ctrl-C again.
struct Acknowledgements {
  const char* to_interrupt;
  const char* to_others;
};
constexpr Acknowledgements kPlainLines{
    "dtrain: stopping after this step and saving; Ctrl-C again ends at once\n",
    "dtrain: stopping after this step and saving\n"};
constexpr Acknowledgements kOverLiveLine{
    "\r\x1b[Jdtrain: stopping after this step and saving; Ctrl-C again ends at once\n",
    "\r\x1b[Jdtrain: stopping after this step and saving\n"};
std::atomic<const Acknowledgements*> acknowledgements = nullptr;
static_assert(std::atomic<const Acknowledgements*>::is_always_lock_free);
std::atomic<bool> is_interrupted = false;
std::atomic<bool> has_launcher = false;

void request_stop(int signal) {
  const bool is_first = stop_signal.exchange(signal) == 0;
  const bool is_interrupt = signal == SIGINT;
  if (is_interrupt && is_interrupted.exchange(true)) base::end_by_signal(SIGINT);
  const Acknowledgements* const all = acknowledgements;
  if (all == nullptr || (!is_interrupt && (!is_first || has_launcher))) return;
  const char* const text = is_interrupt ? all->to_interrupt : all->to_others;
  const int saved_errno = errno;
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, text, std::strlen(text));
  errno = saved_errno;
}
void request_save(int) { save_requested = true; }

// SIGQUIT ends any program at once; the line explains what that means here.
void end_at_once(int signal) {
  constexpr const char* kLine =
      "dtrain: ended by SIGQUIT, which saves nothing; Ctrl-C and SIGTERM save\n";
  if (acknowledgements.load() != nullptr) {
    [[maybe_unused]] const auto written = ::write(STDERR_FILENO, kLine, std::strlen(kLine));
  }
  base::end_by_signal(signal);
}

struct HandledSignal {
  int signal;
  void (*handler)(int);
};

constexpr std::array<HandledSignal, 6> kHandled{{{SIGTERM, request_stop},
                                                 {SIGUSR1, request_stop},
                                                 {SIGINT, request_stop},
                                                 {SIGHUP, request_stop},
                                                 {SIGQUIT, end_at_once},
                                                 {SIGUSR2, request_save}}};

// The number of StopRequests, and the process's signal actions before the first of them.
std::mutex users_mutex;
std::int64_t num_users = 0;                                // guarded by users_mutex
std::array<struct sigaction, kHandled.size()> previous{};  // guarded by users_mutex

std::string name_of(int signal) {
  const char* const name = ::sigabbrev_np(signal);
  return name == nullptr ? "a signal" : std::string("SIG") + name;
}

}  // namespace

FolderMonitor::FolderMonitor(Options options) : options_(std::move(options)) {
  if (!options_.check && options_.stop_file.empty()) return;
  poll();
  thread_ = std::jthread([this](const std::stop_token& stop) { run(stop); });
}

void FolderMonitor::rethrow_failure() const {
  const std::lock_guard lock(mutex_);
  if (failure_) std::rethrow_exception(failure_);
}

void FolderMonitor::poll() noexcept {
  std::error_code ignored;  // a disk that does not respond: the next poll may succeed
  const std::string& stop_file = options_.stop_file;
  if (!stop_file.empty() && std::filesystem::exists(stop_file, ignored)) stop_requested_ = true;
  if (!options_.check) return;
  try {
    options_.check();
  } catch (...) {
    const std::lock_guard lock(mutex_);
    failure_ = std::current_exception();
  }
}

void FolderMonitor::run(const std::stop_token& stop) {
  constexpr std::chrono::milliseconds kInterval(200);
  std::unique_lock lock(mutex_);
  while (!failure_ && !stopped_.wait_for(lock, stop, kInterval, [] { return false; }) &&
         !stop.stop_requested()) {
    lock.unlock();
    poll();
    lock.lock();
  }
}

StopRequests::StopRequests(Options options) : options_(std::move(options)) {
  const std::lock_guard lock(users_mutex);
  if (options_.acknowledges) {
    has_launcher = options_.has_launcher;
    acknowledgements = ::isatty(STDERR_FILENO) == 1 ? &kOverLiveLine : &kPlainLines;
  }
  if (++num_users > 1) return;
  base::print_on_stop_signal(nullptr);  // training reports stops itself
  for (std::size_t index = 0; index < kHandled.size(); ++index) {
    const auto& [signal, handler] = kHandled[index];
    ::sigaction(signal, nullptr, &previous[index]);
    const bool may_be_ignored = signal == SIGHUP || signal == SIGQUIT;  // by nohup, by shells
    if (may_be_ignored && base::is_ignored(signal)) continue;
    struct sigaction action {};
    action.sa_handler = handler;
    action.sa_flags = SA_RESTART;
    ::sigaction(signal, &action, nullptr);
  }
  // The parent may have blocked the signals, which would disable requests. A pending one arrives here.
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
  save_requested = false;
  is_interrupted = false;
  acknowledgements = nullptr;
}

std::string StopRequests::reason(int launcher_signal) const {
  const bool is_forwarded = reason_ == name_of(SIGTERM) && launcher_signal != 0;
  return is_forwarded ? name_of(launcher_signal) : reason_;
}

bool StopRequests::take_save_request() { return save_requested.exchange(false); }

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
