#include "dtrain/base/open_files.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <vector>

namespace dtrain::base {

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
