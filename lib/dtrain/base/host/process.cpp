#include "dtrain/base/host/process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <initializer_list>
#include <latch>
#include <optional>
#include <system_error>
#include <thread>
#include <vector>

#include "dtrain/base/error.h"

namespace dtrain::base {
namespace {

// Global, because a signal handler can access nothing else.
std::atomic<const char*> rest_of_line = nullptr;
std::atomic<StopLine> kind_of_line = StopLine::with_signal;
static_assert(std::atomic<const char*>::is_always_lock_free);
static_assert(std::atomic<StopLine>::is_always_lock_free);

// Uses one write() call, so that lines of several ranks do not interleave. Skips a full pipe, which
// would block the exit.
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

void ensure_standard_streams() {
  int fd = 0;
  while (fd >= 0 && fd <= STDERR_FILENO) fd = ::open("/dev/null", O_RDWR);
  if (fd > STDERR_FILENO) ::close(fd);
  std::signal(SIGPIPE, SIG_IGN);
}

void ignore_file_size_signal() { std::signal(SIGXFSZ, SIG_IGN); }

void block_save_signals() {
  sigset_t requests;
  ::sigemptyset(&requests);
  ::sigaddset(&requests, SIGUSR1);
  ::sigaddset(&requests, SIGUSR2);
  ::pthread_sigmask(SIG_BLOCK, &requests, nullptr);
}

void end_process(int status) {
#ifdef __SANITIZE_ADDRESS__
  std::exit(status);
#else
  std::fflush(nullptr);
  ::_exit(status);
#endif
}

bool print(std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(STDOUT_FILENO, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0 && errno == EPIPE) return false;
    if (written < 0) {
      fail(ErrorKind::usage, "cannot write to standard output: {}", std::strerror(errno));
    }
    text.remove_prefix(static_cast<std::size_t>(written));
  }
  return true;
}

void raise_open_file_limit() noexcept {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == limit.rlim_max) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);  // where it is refused, the old one stays
}

bool can_open_files(std::int64_t count) noexcept {
  std::vector<int> probes;
  while (static_cast<std::int64_t>(probes.size()) < count) {
    const int probe = ::fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 0);
    if (probe < 0) break;
    probes.push_back(probe);
  }
  for (const int probe : probes) ::close(probe);
  return static_cast<std::int64_t>(probes.size()) == count;
}

void require_threads(std::int64_t count) {
  std::optional<std::error_code> reason;
  std::vector<std::jthread> threads;
  threads.reserve(static_cast<std::size_t>(count));
  std::latch may_end(1);
  try {
    while (std::ssize(threads) < count) threads.emplace_back([&] { may_end.wait(); });
  } catch (const std::system_error& error) {
    reason = error.code();
  }
  const auto started = std::ssize(threads);
  may_end.count_down();
  threads.clear();
  if (!reason) return;
  fail(ErrorKind::memory,
       "{} threads are needed, but the system started only {} ({}): raise the limit on processes "
       "(ulimit -u) or of memory (ulimit -v), or lower --threads",
       count, started, reason->message());
}

std::string with_open_file_limit(std::string message) {
  const bool is_met = message.find(std::strerror(EMFILE)) != std::string::npos &&
                      message.find(std::strerror(ENFILE)) == std::string::npos;
  rlimit limit{};
  if (!is_met || ::getrlimit(RLIMIT_NOFILE, &limit) != 0) return message;
  return fmt::format("{}; this process may open {} files: raise the limit (ulimit -n)", message,
                     limit.rlim_cur);
}

void print_on_stop_signal(const char* rest, StopLine line) noexcept {
  kind_of_line = line;
  rest_of_line = rest;
}

void end_by_stop_signal(int signal) noexcept {
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
    action.sa_handler = end_by_stop_signal;
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
  ::pthread_sigmask(SIG_UNBLOCK, &own, nullptr);  // a signal is blocked in its own handler
  ::raise(signal);
  constexpr int kStatusOfSignals = 128;
  ::_exit(kStatusOfSignals + signal);
}

std::string host_of_process() {
  const char* const file = "/proc/sys/kernel/random/boot_id";
  std::string boot_id;
  errno = 0;
  std::getline(std::ifstream(file), boot_id);
  if (boot_id.empty()) {
    fail(ErrorKind::comm, "cannot read {}: {}", file, std::strerror(errno));
  }
  std::array<char, 64> network{};
  (void)!::readlink("/proc/self/ns/net", network.data(), network.size() - 1);
  return fmt::format("{} {}", boot_id, network.data());
}

}  // namespace dtrain::base
