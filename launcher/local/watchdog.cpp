#include "launcher/local/watchdog.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <string>
#include <thread>
#include <utility>

#include "dtrain/base/clock.h"
#include "dtrain/base/error.h"
#include "dtrain/base/host/process.h"
#include "dtrain/base/text/text.h"
#include "launcher/clocks.h"
#include "launcher/local/processes.h"
#include "launcher/options.h"
#include "launcher/output/output_writer.h"

namespace launcher {
namespace {

constexpr std::array kForwardedSignals = {SIGINT,  SIGTERM,  SIGHUP,  SIGQUIT, SIGUSR1,
                                          SIGUSR2, SIGWINCH, SIGTSTP, SIGCONT};
constexpr std::chrono::milliseconds kSupervisedKillLimit{1000};
// Limit for the exit of a supervisor that has reported its status.
constexpr std::chrono::milliseconds kEndLimit{1000};
// After --heartbeat-timeout the other nodes need a moment to declare a stopped supervisor lost.
constexpr std::chrono::milliseconds kGivenUpAfter{500};

sigset_t forwarded_signals() {
  sigset_t set;
  ::sigemptyset(&set);
  for (const int signal : kForwardedSignals) {
    const bool may_be_ignored = signal == SIGHUP || signal == SIGTSTP;  // keeps the effect of nohup
    if (!may_be_ignored || !dtrain::base::is_ignored(signal)) ::sigaddset(&set, signal);
  }
  ::sigaddset(&set, SIGCHLD);
  return set;
}

/// Ends the supervisor. A thread that is blocked in the kernel by a disk keeps the process and its
/// descriptors alive, so this first reports the status to the watchdog and closes the streams.
[[noreturn]] void report_status_and_exit(int status, const dtrain::base::Descriptor& status_pipe,
                                         pid_t watchdog) {
  const auto byte = static_cast<unsigned char>(status);
  [[maybe_unused]] const auto written = ::write(status_pipe.get(), &byte, 1);
  if (::getppid() == watchdog) ::kill(watchdog, SIGCHLD);
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) ::close(fd);
  ::_exit(status);
}

void wait_for_end(pid_t child) {
  const auto end = dtrain::base::Clock::now() + kEndLimit;
  while (::waitpid(child, nullptr, WNOHANG) == 0 && dtrain::base::Clock::now() < end) {
    ::usleep(500);
  }
}

/// True if the child was killed but cannot exit, because one of its threads hangs in the kernel.
bool hangs_in_its_end(pid_t child) {
  if (!is_zombie(child)) return false;
  std::this_thread::sleep_for(kEndLimit);  // it may be about to exit
  siginfo_t info{};
  return ::waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
         info.si_pid == 0;
}

/// Kills a supervisor that stays stopped (SIGSTOP) for so long that the other nodes have declared
/// it lost.
class StopLimit {
 public:
  /// limit: zero if there are no other nodes: the supervisor may stay stopped.
  StopLimit(pid_t child, std::chrono::duration<double> limit) : child_(child), limit_(limit) {}

  [[nodiscard]] std::chrono::duration<double> limit() const { return limit_; }

  /// Returns true if it killed the supervisor.
  bool look() {
    siginfo_t info{};
    const auto id = static_cast<id_t>(child_);
    const auto now = clock_.now();
    if (limit_.count() == 0.0) return false;
    if (::waitid(P_PID, id, &info, WSTOPPED | WCONTINUED | WNOHANG) == 0 && info.si_pid != 0) {
      is_stopped_ = info.si_code == CLD_STOPPED;
      since_ = now;
    }
    if (!is_stopped_ || now - since_ < limit_) return false;
    ::kill(child_, SIGKILL);
    return true;
  }

 private:
  pid_t child_;
  std::chrono::duration<double> limit_;
  bool is_stopped_ = false;
  ActiveClock clock_;  // this process may be stopped with the supervisor
  ActiveClock::Time since_{};
};

/// Kills the processes left by a supervisor that ended as `how` says, and prints the job's failure
/// in its place. Returns `status`.
int end_for(pid_t child, const std::string& how, int status, const std::string& prefix) {
  kill_descendants(kSupervisedKillLimit);  // they are this process's children now
  write_error_for_a_while(
      fmt::format("{}failed: dtrun's own process {}, which supervises the ranks, {}; all ranks of "
                  "this node were ended\n",
                  prefix, child, how));
  return status;
}

void pass_on(int signal, const dtrain::base::Descriptor& signals) {
  const auto byte = static_cast<unsigned char>(signal);
  [[maybe_unused]] const auto written = ::write(signals.get(), &byte, 1);
}

/// Passes signals on until the child has ended, or has reported its status.
int watch_supervisor(pid_t child, const dtrain::base::Descriptor& signals,
                     const dtrain::base::Descriptor& status_pipe, const sigset_t& watched,
                     StopLimit stop_limit, const Options& options) {
  const std::string prefix = own_prefix(options);
  constexpr timespec kLook{.tv_sec = 1, .tv_nsec = 0};  // the kernel does not report such an end
  for (;;) {
    int status = 0;
    pid_t ended = 0;
    // As a container's first process the watchdog also adopts all of the container's orphans.
    do {
      ended = ::waitpid(-1, &status, WNOHANG);
    } while (ended > 0 && ended != child);
    if (ended == child) {
      if (WIFEXITED(status)) return WEXITSTATUS(status);
      const int signal = WTERMSIG(status);
      return end_for(child,
                     fmt::format("was killed by signal {} ({})", signal, signal_name(signal)),
                     128 + signal, prefix);
    }
    unsigned char byte = 0;
    if (::read(status_pipe.get(), &byte, 1) == 1) {
      wait_for_end(child);
      return byte;
    }
    if (stop_limit.look()) {
      return end_for(
          child,
          fmt::format(
              "was stopped (SIGSTOP or the like) for {}, and the other nodes declared it lost",
              dtrain::base::readable_time(stop_limit.limit().count())),
          static_cast<int>(dtrain::base::ErrorKind::timeout), prefix);
    }
    const int signal = ::sigtimedwait(&watched, nullptr, &kLook);
    if (signal < 0 && errno == EAGAIN && hangs_in_its_end(child)) {
      return end_for(child, "was killed, but hangs in the kernel", 128 + SIGKILL, prefix);
    }
    if (signal <= 0 || signal == SIGCHLD) continue;
    pass_on(signal, signals);
    // An emulated node is not a shell job; its parent is.
    if (signal != SIGTSTP || options.emulate_nodes > 0) continue;
    stop_until_continued();
    pass_on(SIGCONT, signals);
  }
}

}  // namespace

int run_under_watchdog(PreparedJob job, int (*supervise)(PreparedJob, WatchdogLink)) {
  WatchdogLink link{};
  const sigset_t watched = forwarded_signals();
  ::sigprocmask(SIG_BLOCK, &watched, &link.original_mask);
  ::signal(SIGCHLD, SIG_DFL);  // a caller that ignores it would have the kernel reap our ranks
  ::signal(SIGPIPE, SIG_IGN);
  ::signal(SIGTTOU, SIG_IGN);  // the supervisor writes to the terminal from the background
  adopt_orphans();
  Pipe signals = make_pipe();
  ::fcntl(signals.writer.get(), F_SETFL, O_NONBLOCK);  // never blocks on the supervisor
  Pipe status = make_pipe();
  link.signals = std::move(signals.reader);
  const pid_t own = ::getpid();
  const pid_t child = ::fork();
  if (child < 0) {
    dtrain::base::fail(dtrain::base::ErrorKind::spawn, "cannot start a process: {}",
                       std::strerror(errno));
  }
  if (child == 0) {
    signals.writer.reset();
    ::setpgid(0, 0);
    ::prctl(PR_SET_NAME, "dtrun-ranks");
    report_status_and_exit(supervise(std::move(job), std::move(link)), status.writer, own);
  }
  // Only the supervisor uses the port, and only the ranks use the rendezvous socket.
  job.port.socket.reset();
  job.store_listener.reset();
  job.rendezvous = {};
  link.signals.reset();
  std::chrono::duration<double> limit{0.0};
  if (job.placement.has_several_nodes()) limit = job.options.heartbeat_timeout + kGivenUpAfter;
  job.nodes.reset();
  return watch_supervisor(child, signals.writer, status.reader, watched, StopLimit(child, limit),
                          job.options);
}

}  // namespace launcher
