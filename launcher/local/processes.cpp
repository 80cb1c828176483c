#include "launcher/local/processes.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "dtrain/base/clock.h"
#include "dtrain/base/error.h"
#include "dtrain/base/io/descriptor.h"
#include "dtrain/base/text/number.h"

namespace launcher {
namespace {

struct Process {
  pid_t pid = 0;
  pid_t parent = 0;
  pid_t group = 0;
  char state = '?';

  [[nodiscard]] bool running() const { return state != 'Z' && state != 'X'; }
};

std::string read_proc(pid_t pid, const char* name) {
  const std::string path = "/proc/" + std::to_string(pid) + "/" + name;
  const dtrain::base::Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  std::string text(4096, '\0');
  const ssize_t length = file ? ::read(file.get(), text.data(), text.size()) : 0;
  text.resize(static_cast<std::size_t>(std::max<ssize_t>(length, 0)));
  return text;
}

/// Parses /proc/PID/stat; returns no parent if the process is gone.
Process look_at(pid_t pid) {
  Process process{.pid = pid};
  const std::string text = read_proc(pid, "stat");
  // "PID (NAME) STATE PARENT GROUP ...": NAME may contain any characters, so parsing starts at the
  // last parenthesis.
  const auto bracket = text.rfind(')');
  if (bracket == std::string::npos) return process;
  std::sscanf(text.c_str() + bracket + 1, " %c %d %d", &process.state, &process.parent,
              &process.group);
  return process;
}

/// The /proc of another PID namespace has other pids, so signals would reach the wrong processes.
bool proc_is_ours() {
  char text[32] = "";
  return ::readlink("/proc/self", text, sizeof(text) - 1) > 0 && std::atoi(text) == ::getpid();
}

std::vector<Process> descendants() {
  const std::unique_ptr<DIR, int (*)(DIR*)> proc(::opendir("/proc"), &::closedir);
  if (!proc || !proc_is_ours()) return {};
  std::multimap<pid_t, Process> children;
  while (const dirent* entry = ::readdir(proc.get())) {
    const pid_t pid = std::atoi(entry->d_name);
    if (pid <= 0) continue;
    const Process process = look_at(pid);
    children.emplace(process.parent, process);
  }
  std::vector<Process> found = {{.pid = ::getpid()}};
  for (std::size_t i = 0; i < found.size(); ++i) {
    const auto [begin, end] = children.equal_range(found[i].pid);
    for (auto child = begin; child != end; ++child) found.push_back(child->second);
  }
  found.erase(found.begin());
  return found;
}

bool handles(pid_t pid, int signal) {
  constexpr std::string_view kCaught = "\nSigCgt:";
  const std::string status = read_proc(pid, "status");
  const auto at = status.find(kCaught);
  if (at == std::string::npos) return false;
  const auto caught = std::strtoull(status.c_str() + at + kCaught.size(), nullptr, 16);
  return ((caught >> (signal - 1)) & 1) != 0;
}

/// Reads the kernel's list of children if there is one: scanning all processes of a busy machine is
/// slow.
void kill_children() {
  if (!proc_is_ours()) return;
  const pid_t own = ::getpid();
  std::istringstream list(read_proc(own, ("task/" + std::to_string(own) + "/children").c_str()));
  for (pid_t child = 0; list >> child;) ::kill(child, SIGKILL);
}

}  // namespace

void adopt_orphans() { ::prctl(PR_SET_CHILD_SUBREAPER, 1); }

bool has_children() {
  siginfo_t info{};
  return ::waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) == 0 || errno != ECHILD;
}

bool is_zombie(pid_t pid) { return look_at(pid).state == 'Z'; }

std::set<pid_t> running_groups() {
  std::set<pid_t> groups;
  for (const Process& process : descendants()) {
    if (process.running()) groups.insert(process.group);
  }
  return groups;
}

void signal_descendants(int signal) {
  for (const Process& process : descendants()) ::kill(process.pid, signal);
}

void notify_group(pid_t leader, int signal) {
  bool told = false;
  if (!handles(leader, signal)) {
    for (const Process& process : descendants()) {
      if (process.group != leader || !handles(process.pid, signal)) continue;
      ::kill(process.pid, signal);
      told = true;
    }
  }
  if (!told) ::kill(leader, signal);
}

void reap_all() {
  while (::waitpid(-1, nullptr, WNOHANG) > 0) {
  }
}

bool kill_descendants(std::chrono::milliseconds limit, const std::function<void()>& reap) {
  const auto deadline = dtrain::base::Clock::now() + limit;
  kill_children();
  while (has_children()) {
    // Repeats, because a process may fork between the scan and the kill.
    signal_descendants(SIGKILL);
    ::usleep(1000);
    reap();
    if (dtrain::base::Clock::now() > deadline) return !has_children();
  }
  return true;
}

Pipe make_pipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) {
    dtrain::base::fail(dtrain::base::ErrorKind::spawn, "cannot create a pipe: {}",
                       std::strerror(errno));
  }
  ::fcntl(ends[0], F_SETFL, O_NONBLOCK);
  return {dtrain::base::Descriptor(ends[0]), dtrain::base::Descriptor(ends[1])};
}

bool is_readable_within(const dtrain::base::Descriptor& reader, std::chrono::milliseconds limit) {
  pollfd waited{.fd = reader.get(), .events = POLLIN, .revents = 0};
  return ::poll(&waited, 1, static_cast<int>(limit.count())) > 0;
}

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
