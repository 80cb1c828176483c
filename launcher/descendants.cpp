#include "launcher/descendants.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "dtrain/base/clock.h"
#include "launcher/descriptor.h"

namespace launcher {
namespace {

/// The parent of a process by /proc/PID/stat; 0 when it is gone.
pid_t parent_of(const char* pid) {
  const Descriptor file(
      ::open((std::string("/proc/") + pid + "/stat").c_str(), O_RDONLY | O_CLOEXEC));
  char text[512];
  const ssize_t length = file ? ::read(file.get(), text, sizeof(text) - 1) : 0;
  if (length <= 0) return 0;
  text[length] = '\0';
  // "PID (NAME) STATE PPID ...": the name may hold anything, so look for its last bracket.
  const char* const bracket = std::strrchr(text, ')');
  return bracket == nullptr || std::strlen(bracket) < 4 ? 0 : std::atoi(bracket + 4);
}

std::vector<pid_t> descendants() {
  std::multimap<pid_t, pid_t> children;
  const std::unique_ptr<DIR, int (*)(DIR*)> proc(::opendir("/proc"), &::closedir);
  if (!proc) return {};
  while (const dirent* entry = ::readdir(proc.get())) {
    const pid_t pid = std::atoi(entry->d_name);
    if (pid > 0) children.emplace(parent_of(entry->d_name), pid);
  }
  std::vector<pid_t> found = {::getpid()};
  for (std::size_t i = 0; i < found.size(); ++i) {
    const auto [begin, end] = children.equal_range(found[i]);
    for (auto child = begin; child != end; ++child) found.push_back(child->second);
  }
  found.erase(found.begin());
  return found;
}

}  // namespace

void adopt_orphans() { ::prctl(PR_SET_CHILD_SUBREAPER, 1); }

bool has_children() {
  siginfo_t info{};
  return ::waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) == 0 || errno != ECHILD;
}

void signal_descendants(int signal) {
  for (const pid_t pid : descendants()) ::kill(pid, signal);
}

bool kill_descendants(std::chrono::milliseconds limit) {
  const auto deadline = dtrain::base::Clock::now() + limit;
  while (has_children()) {
    // Again and again: one may fork between the look and the kill.
    signal_descendants(SIGKILL);
    ::usleep(1000);
    while (::waitpid(-1, nullptr, WNOHANG) > 0) {
    }
    if (dtrain::base::Clock::now() > deadline) return !has_children();
  }
  return true;
}

}  // namespace launcher
