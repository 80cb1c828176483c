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

#include "dtrain/base/clock.h"
#include "dtrain/base/error.h"
#include "launcher/descendants.h"

namespace launcher {
namespace {

constexpr std::array kPassedOn = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGWINCH};
constexpr std::chrono::milliseconds kKillLimit{1000};
// The time in which a supervisor that has reported its status must end.
constexpr std::chrono::milliseconds kEndLimit{1000};

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

struct Pipe {
  Descriptor reader;
  Descriptor writer;
};

Pipe make_pipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) {
    dtrain::base::fail(dtrain::base::ErrorKind::spawn, "cannot make a pipe: {}",
                       std::strerror(errno));
  }
  return {Descriptor(ends[0]), Descriptor(ends[1])};
}

/// Ends the supervisor. A thread that hangs in the kernel, on a disk, keeps the process and its
/// descriptors: so the guard learns the status first, and the ends of the standard streams are
/// seen.
[[noreturn]] void leave(int status, const Descriptor& told) {
  const auto byte = static_cast<unsigned char>(status);
  [[maybe_unused]] const auto written = ::write(told.get(), &byte, 1);
  ::kill(::getppid(), SIGCHLD);
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) ::close(fd);
  ::_exit(status);
}

void wait_for_end(pid_t child) {
  const auto end = dtrain::base::Clock::now() + kEndLimit;
  while (::waitpid(child, nullptr, WNOHANG) == 0 && dtrain::base::Clock::now() < end) {
    ::usleep(500);
  }
}

/// Passes signals on until the child has ended or has reported its status.
int guard(pid_t child, const Descriptor& signals, const Descriptor& told, const sigset_t& watched) {
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
    unsigned char byte = 0;
    if (::read(told.get(), &byte, 1) == 1) {
      wait_for_end(child);
      return byte;
    }
    const int signal = ::sigwaitinfo(&watched, nullptr);
    if (signal <= 0 || signal == SIGCHLD) continue;
    byte = static_cast<unsigned char>(signal);
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
  Pipe signals = make_pipe();
  Pipe status = make_pipe();
  link.signals = std::move(signals.reader);
  const pid_t child = ::fork();
  if (child < 0) {
    dtrain::base::fail(dtrain::base::ErrorKind::spawn, "cannot start a process: {}",
                       std::strerror(errno));
  }
  if (child == 0) {
    signals.writer.reset();
    ::setpgid(0, 0);
    ::prctl(PR_SET_NAME, "dtrun-ranks");
    leave(supervise(std::move(job), std::move(link)), status.writer);
  }
  job.port.socket.reset();  // the supervisor's alone, and the door is the ranks'
  job.door = {};
  link.signals.reset();
  return guard(child, signals.writer, status.reader, watched);
}

}  // namespace launcher
