#include "launcher/job.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <set>

#include "dtrain/base/error.h"
#include "dtrain/base/host/process.h"
#include "dtrain/base/io/storage_error.h"
#include "launcher/environment.h"
#include "launcher/local/processes.h"

namespace launcher {
namespace {

using dtrain::base::Descriptor;
using dtrain::base::ErrorKind;
using dtrain::base::fail;

void require(bool good, const char* what) {
  if (!good) {
    fail(ErrorKind::spawn, "cannot make {}: {}", what, std::strerror(errno));
  }
}

Pipe make_control() {
  int ends[2];
  require(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0, "a socket pair");
  return {Descriptor(ends[0]), Descriptor(ends[1])};
}

/// Before each line of a rank: "[3] ", "[hostb:3] ", "[node1:3] ".
std::string prefix_of(const PreparedJob& job, int node, int index) {
  if (job.options.emulate_nodes > 0) return fmt::format("[node{}:{}] ", node, index);
  const Placement& placement = job.placement;
  if (placement.has_several_nodes()) {
    return fmt::format("[{}:{}] ", placement.node(node).host, index);
  }
  return placement.world_size() > 1 ? fmt::format("[{}] ", index) : "";
}

RankStreamOptions stream_options(const PreparedJob& job, int index, Stream stream,
                                 const SharedOutput& console, LogWriter& logs) {
  const Options& options = job.options;
  const int bit = static_cast<int>(stream);
  const int local = index - job.placement.own().first_rank;
  const auto& filter = options.local_ranks_filter;
  const bool teed = options.tee.has(local, bit);
  const bool redirected = options.redirects.has(local, bit);
  RankStreamOptions result;
  result.stream = stream;
  result.prefix = prefix_of(job, job.placement.node_rank, index);
  result.shown = (teed || !redirected) &&
                 (filter.empty() || std::find(filter.begin(), filter.end(), local) != filter.end());
  result.live = index == 0 && stream == Stream::error && result.shown && console.terminal();
  if (teed || redirected) {
    const char* const name = stream == Stream::output ? "stdout" : "stderr";
    std::string why_not;
    LogFile file = job.folder.create_log(index, name, why_not);
    const std::string text = fmt::format("the log of rank {}'s {}", index, name);
    if (file.descriptor) result.log = logs.add(std::move(file), text);
    if (!why_not.empty()) logs.warn(fmt::format("{} is lost: {}", text, why_not));
  }
  return result;
}

/// Rank 0 reads dtrun's input, unless that is a terminal: a rank is not in its foreground.
Descriptor input_of(int index) {
  if (index == 0 && ::isatty(STDIN_FILENO) != 1) {
    return Descriptor(::fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 3));
  }
  return Descriptor(::open("/dev/null", O_RDONLY | O_CLOEXEC));
}

/// A rank to be. All descriptors stay the caller's; the rank has copies.
struct SpawnRequest {
  std::string file;                      // what find_program gave
  std::vector<std::string> arguments;    // the program's name first
  std::vector<std::string> environment;  // NAME=VALUE
  int standard_input = -1;
  int standard_output = -1;
  int standard_error = -1;
  std::vector<int> inherited;  // kept open in the rank under the same numbers
  sigset_t signal_mask{};      // of the rank
  rlimit open_files{};         // of the rank (RLIMIT_NOFILE)
  dtrain::base::CpuList cpus;  // where it may run; empty: where the caller may
};

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
  if (::getppid() != parent) ::_exit(127);  // it died before the line above
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
      return ": the file is there, but not the interpreter that its first line, or its format, "
             "names";
    case ELOOP:
      return "; fix its symbolic links, which form a loop";
    case ETXTBSY:
      return "; start again when nothing writes to the file any more";
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
      return "; let this user run it, or run it as another";
    case EIO:
      return "; its disk cannot read it";
    case EINVAL:
      return request.cpus.empty()
                 ? "; the program's file is damaged"
                 : "; its CPUs may be gone since dtrun was started: start again, or "
                   "leave out --bind";
    default:
      return "; check the name";
  }
}

/// Returns the child, or -1 and why not in errno.
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

/// Starts the program in a process group of its own, to be killed by the kernel when dtrun dies.
/// Tries again, for up to 30 s, while the storage of its file fails in passing.
///
/// Throws: naming the program, after which there is no child: StorageError if that has not helped;
///         Error{memory} without room for another process; else Error{spawn}.
pid_t spawn(const SpawnRequest& request) {
  dtrain::base::StorageRetry retry(request.file);
  for (;;) {
    const pid_t child = try_to_spawn(request);
    if (child > 0) return child;
    const int error = errno;
    // The job asks for more than the system has; a restart may find that others have ended.
    const bool has_no_room = error == EAGAIN || error == ENOMEM;
    if (!has_no_room && retry.should_retry(error)) continue;
    const std::string text = fmt::format("cannot start '{}': {}{}", request.arguments.front(),
                                         std::strerror(error), advice_for(error, request));
    if (has_no_room) throw dtrain::base::Error(dtrain::base::ErrorKind::memory, text);
    dtrain::base::fail_on_storage(dtrain::base::ErrorKind::spawn, error, text);
  }
}

/// The record of a rank that another node's launcher starts.
Rank far_rank(const PreparedJob& job, int node, int index) {
  RankStreamOptions error{
      .stream = Stream::error, .prefix = prefix_of(job, node, index), .shown = false, .log = {}};
  return Rank{.index = index, .node = node, .error = RankStream({}, std::move(error))};
}

/// Starts one rank of this node. `index` counts the ranks of the job.
Rank start_rank(const PreparedJob& job, int index, const sigset_t& signal_mask,
                const SharedOutput& console, LogWriter& logs) {
  Pipe output = make_pipe();
  Pipe error = make_pipe();
  Pipe control = make_control();
  RankStream output_stream(std::move(output.reader),
                           stream_options(job, index, Stream::output, console, logs));
  RankStream error_stream(std::move(error.reader),
                          stream_options(job, index, Stream::error, console, logs));

  RankStart start{.index = index, .control_fd = control.writer.get()};
  // Where output goes elsewhere, a program's progress belongs into it (dtrun ... | tee log).
  const bool sees_all = !output_stream.shown() || ::isatty(STDOUT_FILENO) == 1;
  if (error_stream.live() && sees_all) {
    start.terminal_columns = error_stream.columns_within(console.columns());
  }

  const Descriptor input = input_of(index);
  SpawnRequest request;
  request.file = job.program_file;
  request.arguments = job.options.program;
  request.environment = environment_of(job, start);
  request.standard_input = input.get();
  request.standard_output = output.writer.get();
  request.standard_error = error.writer.get();
  request.inherited = {start.control_fd, job.store_fd(index), job.store_listener_fd(index)};
  if (!job.binding.masks.empty()) {
    const int local = index - job.placement.own().first_rank;
    request.cpus = job.binding.masks[static_cast<std::size_t>(local)];
  }
  request.open_files = job.open_files;
  request.signal_mask = signal_mask;
  const pid_t pid = spawn(request);
  Descriptor pidfd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  if (!pidfd) {
    ::kill(pid, SIGKILL);
    require(false, "a process descriptor (Linux 5.3 or later)");
  }
  return Rank{.index = index,
              .node = job.placement.node_rank,
              .pid = pid,
              .pidfd = std::move(pidfd),
              .control = std::move(control.reader),
              .output = std::move(output_stream),
              .error = std::move(error_stream)};
}

}  // namespace

void require_files_for(int num_ranks) {
  constexpr int kOfEach = 4;    // both outputs, the control descriptor, the process
  constexpr int kOfAStart = 8;  // while one is started
  if (dtrain::base::can_open_files(kOfEach * num_ranks + kOfAStart)) return;
  fail(ErrorKind::spawn, "cannot start {} ranks, each of which takes {} files here: {}", num_ranks,
       kOfEach, std::strerror(EMFILE));
}

void JobRanks::start(const PreparedJob& job, const sigset_t& signal_mask,
                     const SharedOutput& console, LogWriter& logs) {
  constexpr std::chrono::milliseconds kKillLimit(300);
  ranks_.reserve(static_cast<std::size_t>(placement_.world_size()));
  for (int node = 0; node < placement_.node_rank; ++node) add_remote(job, node);
  try {
    for (int local = 0; local < placement_.own().num_ranks; ++local) {
      const int index = placement_.own().first_rank + local;
      ranks_.push_back(start_rank(job, index, signal_mask, console, logs));
    }
  } catch (...) {
    kill_descendants(kKillLimit);
    throw;
  }
  for (int node = placement_.node_rank + 1; node < placement_.num_nodes(); ++node) {
    add_remote(job, node);
  }
}

void JobRanks::add_remote(const PreparedJob& job, int node) {
  const NodePlace& place = placement_.node(node);
  for (int local = 0; local < place.num_ranks; ++local) {
    ranks_.push_back(far_rank(job, node, place.first_rank + local));
  }
}

std::span<Rank> JobRanks::own() {
  const NodePlace& own = placement_.own();
  return std::span(ranks_).subspan(static_cast<std::size_t>(own.first_rank),
                                   static_cast<std::size_t>(own.num_ranks));
}

Rank* JobRanks::find(std::uint64_t index, int node) {
  if (index >= ranks_.size() || ranks_[index].node != node) return nullptr;
  return &ranks_[index];
}

bool JobRanks::any_running() {
  const auto runs = [this](const Rank& rank) {
    return rank.running() && (placement_.node_rank == 0 || rank.node == placement_.node_rank);
  };
  while (first_running_ < ranks_.size() && !runs(ranks_[first_running_])) ++first_running_;
  return first_running_ < ranks_.size();
}

bool JobRanks::any_group_running() {
  const std::set<pid_t> running = running_groups();
  return std::ranges::any_of(own(), [&](const Rank& rank) { return running.contains(rank.pid); });
}

void JobRanks::tell(const Rank& rank, std::string_view line) {
  ::send(rank.control.get(), line.data(), line.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
}

void JobRanks::signal_groups(std::span<const int> signals, std::string_view line) {
  for (const Rank& rank : own()) {
    if (!rank.running()) continue;
    if (!line.empty()) tell(rank, line);
    for (const int signal : signals) ::kill(-rank.pid, signal);
  }
}

void JobRanks::kill() {
  for (const Rank& rank : own()) {
    if (!rank.running()) continue;
    ::kill(-rank.pid, SIGKILL);
    ::kill(rank.pid, SIGKILL);  // where it has left its group
  }
}

// Adopted processes have no descriptor that reports their end. Runs after all events: while an
// ended rank is not reaped, it hides those that ended after it, and no further signal would come.
void JobRanks::reap_orphans(std::int64_t now_ns, bool counts) {
  for (;;) {
    siginfo_t info{};
    if (::waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0) return;
    const bool is_rank = std::ranges::any_of(
        own(), [&](const Rank& rank) { return rank.running() && rank.pid == info.si_pid; });
    if (is_rank) return;  // its own event comes; the order of deaths is epoll's
    const RankEnd end{now_ns, info.si_code != CLD_EXITED, info.si_status};
    const pid_t group = ::getpgid(info.si_pid);
    for (Rank& rank : own()) {
      if (rank.pid == group && counts) rank.take_orphan(end);
    }
    ::waitpid(info.si_pid, nullptr, 0);
  }
}

void JobRanks::take_orphans() {
  for (Rank& rank : own()) {
    if (rank.orphan) rank.end = rank.orphan;
  }
}

}  // namespace launcher
