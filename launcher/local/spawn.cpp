#include "launcher/local/spawn.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "dtrain/base/error.h"
#include "dtrain/base/host/process.h"
#include "dtrain/base/io/storage_error.h"

namespace launcher {
namespace {

std::vector<char*> pointers_to(const std::vector<std::string>& strings) {
  std::vector<char*> result;
  for (const std::string& text : strings) result.push_back(const_cast<char*>(text.c_str()));
  result.push_back(nullptr);
  return result;
}

/// Runs between vfork and exec in the parent's memory: system calls only, and no return.
[[noreturn]] void become_rank(const SpawnRequest& request, char* const* arguments,
                              char* const* environment, pid_t parent, volatile int& error) {
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(127);  // the parent died before prctl()
  ::dup2(request.standard_input, STDIN_FILENO);
  ::dup2(request.standard_output, STDOUT_FILENO);
  ::dup2(request.standard_error, STDERR_FILENO);
  for (const int fd : request.inherited) ::fcntl(fd, F_SETFD, 0);
  struct sigaction standard {};
  standard.sa_handler = SIG_DFL;
  ::sigaction(SIGPIPE, &standard, nullptr);
  ::sigaction(SIGTTOU, &standard, nullptr);
  ::sigaction(SIGXFSZ, &standard, nullptr);
  ::sigprocmask(SIG_SETMASK, &request.signal_mask, nullptr);
  ::setrlimit(RLIMIT_NOFILE, &request.open_files);
  if (dtrain::base::bind_thread(request.cpus))
    ::execve(request.file.c_str(), arguments, environment);
  error = errno;
  ::_exit(127);
}

const char* advice_for(int error, const SpawnRequest& request) {
  switch (error) {
    case EACCES:
      return "; name an executable program (python3 SCRIPT for a script)";
    case ENOEXEC:
      return "; a script needs a first line such as #!/bin/sh, and a program must be built for "
             "this "
             "kind of machine";
    case ENOENT:
      if (::access(request.file.c_str(), F_OK) != 0) return "; check the name";
      return ": the file exists, but the interpreter that its first line or ELF header names does "
             "not";
    case ELOOP:
      return "; fix its symbolic links, which form a loop";
    case ETXTBSY:
      return "; a process is writing to the file: start again when it has finished";
    case E2BIG:
      return "; shorten the arguments or the environment variables, or raise ulimit -s";
    case EAGAIN:
      return "; start fewer ranks (-n), or raise the limit on processes (ulimit -u, or pids.max of "
             "the control group)";
    case ENOMEM:
      return "; free memory, or start fewer ranks (-n)";
    case EMFILE:
      return "";  // the limit follows
    case ENFILE:
      return "; close programs that hold many files, or raise fs.file-max";
    case EPERM:
      return "; give this user permission to execute it, or run dtrun as another user";
    case EIO:
      return "; the disk cannot read the program's file";
    case EINVAL:
      return request.cpus.empty()
                 ? "; the program's file is damaged"
                 : "; the rank's CPUs may have gone offline: start again, or leave out --bind";
    default:
      return "; check the name";
  }
}

/// Returns the child's pid, or -1 with errno set.
pid_t try_to_spawn(const SpawnRequest& request) {
  const std::vector<char*> arguments = pointers_to(request.arguments);
  const std::vector<char*> environment = pointers_to(request.environment);
  const pid_t parent = ::getpid();
  volatile int error = 0;
  const pid_t child = ::vfork();  // cheap, and a failed exec is known on return
  if (child == 0) become_rank(request, arguments.data(), environment.data(), parent, error);
  if (child < 0 || error == 0) return child;
  ::waitpid(child, nullptr, 0);
  errno = error;
  return -1;
}

}  // namespace

pid_t spawn(const SpawnRequest& request) {
  dtrain::base::StorageRetry retry(request.file);
  for (;;) {
    const pid_t child = try_to_spawn(request);
    if (child > 0) return child;
    const int error = errno;
    // The system lacks resources; other processes may have freed some by the next restart.
    const bool has_no_room = error == EAGAIN || error == ENOMEM;
    if (!has_no_room && retry.should_retry(error)) continue;
    const std::string text = fmt::format("cannot start '{}': {}{}", request.arguments.front(),
                                         std::strerror(error), advice_for(error, request));
    if (has_no_room) throw dtrain::base::Error(dtrain::base::ErrorKind::memory, text);
    dtrain::base::fail_on_storage(dtrain::base::ErrorKind::spawn, error, text);
  }
}

}  // namespace launcher
