#include "dtrain/base/process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "dtrain/base/error.h"

namespace dtrain::base {

void secure_standard_streams() {
  int fd = 0;
  while (fd >= 0 && fd <= STDERR_FILENO) fd = ::open("/dev/null", O_RDWR);
  if (fd > STDERR_FILENO) ::close(fd);
  std::signal(SIGPIPE, SIG_IGN);
}

void survive_file_size_limit() { std::signal(SIGXFSZ, SIG_IGN); }

void hold_requests_to_save() {
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

std::string with_open_file_limit(std::string message) {
  const bool is_met = message.find(std::strerror(EMFILE)) != std::string::npos &&
                      message.find(std::strerror(ENFILE)) == std::string::npos;
  rlimit limit{};
  if (!is_met || ::getrlimit(RLIMIT_NOFILE, &limit) != 0) return message;
  return fmt::format("{}; this process may open {} files: raise the limit (ulimit -n)", message,
                     limit.rlim_cur);
}

}  // namespace dtrain::base
