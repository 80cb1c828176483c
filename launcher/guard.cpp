#include "launcher/guard.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>

#include "dtrain/base/error.h"
#include "launcher/descendants.h"

namespace launcher {
namespace {

constexpr std::array kPassedOn = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGWINCH};
constexpr std::chrono::milliseconds kKillLimit{1000};

bool ignored(int signal) {
  struct sigaction action {};
  return ::sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

sigset_t guarded_signals() {
  sigset_t set;
  ::sigemptyset(&set);
  for (const int signal : kPassedOn) {
    if (signal != SIGHUP || !ignored(SIGHUP)) ::sigaddset(&set, signal);  // nohup stays nohup
  }
  ::sigaddset(&set, SIGCHLD);
  return set;
}

/// Passes signals on until the child has ended.
int guard(pid_t child, const Descriptor& signals, const sigset_t& watched) {
  for (;;) {
    int status = 0;
    pid_t ended = 0;
    // As the first process of a container the guard gets orphans from all over it, too.
    do {
      ended = ::waitpid(-1, &status, WNOHANG);
    } while (ended > 0 && ended != child);
    if (ended == child) {
      if (WIFEXITED(status)) return WEXITSTATUS(status);
      kill_descendants(kKillLimit);  // they are this process's children now
      return 128 + WTERMSIG(status);
    }
    const int signal = ::sigwaitinfo(&watched, nullptr);
    if (signal <= 0 || signal == SIGCHLD) continue;
    const auto byte = static_cast<unsigned char>(signal);
    [[maybe_unused]] const auto written = ::write(signals.get(), &byte, 1);
  }
}

}  // namespace

int run_guarded(Job job, int (*supervise)(Job, GuardLink)) {
  GuardLink link{};
  const sigset_t watched = guarded_signals();
  ::sigprocmask(SIG_BLOCK, &watched, &link.original_mask);
  ::signal(SIGCHLD, SIG_DFL);  // a caller that ignores it would have the kernel reap our ranks
  ::signal(SIGPIPE, SIG_IGN);
  ::signal(SIGTTOU, SIG_IGN);  // the supervisor writes to the terminal from the background
  adopt_orphans();
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) {
    dtrain::base::fail(dtrain::base::ErrorKind::spawn, "cannot make a pipe: {}",
                       std::strerror(errno));
  }
  link.signals = Descriptor(ends[0]);
  Descriptor writer(ends[1]);
  const pid_t child = ::fork();
  if (child < 0) {
    dtrain::base::fail(dtrain::base::ErrorKind::spawn, "cannot start a process: {}",
                       std::strerror(errno));
  }
  if (child == 0) {
    writer.reset();
    ::setpgid(0, 0);
    ::prctl(PR_SET_NAME, "dtrun-ranks");
    ::_exit(supervise(std::move(job), std::move(link)));
  }
  job.port.socket.reset();  // the supervisor's alone, and the door is the ranks'
  job.door = {};
  link.signals.reset();
  return guard(child, writer, watched);
}

}  // namespace launcher
