#include "launcher/local/local_ranks.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <set>
#include <utility>

#include "dtrain/base/error.h"
#include "dtrain/base/host/process.h"
#include "launcher/environment.h"
#include "launcher/job.h"
#include "launcher/local/processes.h"
#include "launcher/local/spawn.h"
#include "launcher/output/live_line.h"

namespace launcher {
namespace {

using dtrain::base::Descriptor;
using dtrain::base::ErrorKind;
using dtrain::base::fail;

void require(bool good, const char* what) {
  if (!good) {
    fail(ErrorKind::spawn, "cannot create {}: {}", what, std::strerror(errno));
  }
}

Pipe make_control() {
  int ends[2];
  require(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0, "a socket pair");
  return {Descriptor(ends[0]), Descriptor(ends[1])};
}

/// Prefix of each line of a rank's output: "[3] ", "[hostb:3] ", "[node1:3] ".
std::string prefix_of(const PreparedJob& job, int node, int index) {
  if (job.options.emulate_nodes > 0) return fmt::format("[node{}:{}] ", node, index);
  const Placement& placement = job.placement;
  if (placement.has_several_nodes()) {
    return fmt::format("[{}:{}] ", placement.node(node).host, index);
  }
  return placement.world_size() > 1 ? fmt::format("[{}] ", index) : "";
}

RankStreamOptions stream_options(const PreparedJob& job, int index, Stream stream,
                                 LogWriter& logs) {
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
  result.live = index == 0 && stream == Stream::error && result.shown && error_is_terminal();
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

/// Rank 0 reads dtrun's input, unless that is a terminal: ranks are not in its foreground process
/// group.
Descriptor input_of(int index) {
  if (index == 0 && ::isatty(STDIN_FILENO) != 1) {
    return Descriptor(::fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 3));
  }
  return Descriptor(::open("/dev/null", O_RDONLY | O_CLOEXEC));
}

/// Adds the records of the ranks that another node's launcher starts.
void add_remote(RankTable& table, const PreparedJob& job, int node) {
  const NodePlace& place = job.placement.node(node);
  for (int local = 0; local < place.num_ranks; ++local) {
    const int index = place.first_rank + local;
    RankStreamOptions error{
        .stream = Stream::error, .prefix = prefix_of(job, node, index), .shown = false, .log = {}};
    table.add(Rank{.index = index, .node = node, .error = RankStream({}, std::move(error))});
  }
}

/// Starts one rank of this node. `index` counts the ranks of the job.
Rank start_rank(const PreparedJob& job, int index, const sigset_t& signal_mask, LogWriter& logs) {
  Pipe output = make_pipe();
  Pipe error = make_pipe();
  Pipe control = make_control();
  RankStream output_stream(std::move(output.reader),
                           stream_options(job, index, Stream::output, logs));
  RankStream error_stream(std::move(error.reader), stream_options(job, index, Stream::error, logs));

  RankStart start{.index = index, .control_fd = control.writer.get()};
  // If output is redirected, a program's progress belongs there (dtrun ... | tee log).
  const bool sees_all = !output_stream.shown() || ::isatty(STDOUT_FILENO) == 1;
  if (error_stream.live() && sees_all) {
    start.terminal_columns = error_stream.columns_left(terminal_columns());
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
  fail(ErrorKind::spawn,
       "cannot start {} ranks: dtrun opens {} files for each ({}); raise the limit (ulimit -n), or "
       "start fewer ranks",
       num_ranks, kOfEach, std::strerror(EMFILE));
}

void LocalRanks::start(const PreparedJob& job, const sigset_t& signal_mask, LogWriter& logs) {
  constexpr std::chrono::milliseconds kKillLimit(300);
  const Placement& placement = job.placement;
  for (int node = 0; node < placement.node_rank; ++node) add_remote(table_, job, node);
  try {
    for (int local = 0; local < placement.own().num_ranks; ++local) {
      const int index = placement.own().first_rank + local;
      table_.add(start_rank(job, index, signal_mask, logs));
    }
  } catch (...) {
    kill_descendants(kKillLimit);
    throw;
  }
  for (int node = placement.node_rank + 1; node < placement.num_nodes(); ++node) {
    add_remote(table_, job, node);
  }
}

bool LocalRanks::any_group_running() {
  const std::set<pid_t> running = running_groups();
  return std::ranges::any_of(table_.own(),
                             [&](const Rank& rank) { return running.contains(rank.pid); });
}

void LocalRanks::send_line(const Rank& rank, std::string_view line) {
  ::send(rank.control.get(), line.data(), line.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
}

void LocalRanks::signal_groups(std::span<const int> signals, std::string_view line) {
  for (const Rank& rank : table_.own()) {
    if (!rank.running()) continue;
    if (!line.empty()) send_line(rank, line);
    for (const int signal : signals) ::kill(-rank.pid, signal);
  }
}

void LocalRanks::notify(int signal) {
  for (const Rank& rank : table_.own()) {
    if (rank.running()) notify_group(rank.pid, signal);
  }
}

void LocalRanks::kill() {
  for (const Rank& rank : table_.own()) {
    if (!rank.running()) continue;
    ::kill(-rank.pid, SIGKILL);
    ::kill(rank.pid, SIGKILL);  // in case it has left its process group
  }
}

std::optional<RankEnd> LocalRanks::reap(const Rank& rank) {
  siginfo_t info{};
  if (!rank.running() ||
      ::waitid(P_PID, static_cast<id_t>(rank.pid), &info, WEXITED | WNOHANG) != 0 ||
      info.si_pid == 0) {
    return std::nullopt;
  }
  return RankEnd{0, info.si_code != CLD_EXITED, info.si_status};
}

// Adopted processes have no descriptor that reports their end. Runs after all events: while an
// ended rank is not reaped, it hides those that ended after it, and no further signal would come.
void LocalRanks::reap_orphans(std::int64_t now_ns, bool counts) {
  for (;;) {
    siginfo_t info{};
    if (::waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0) return;
    const bool is_rank = std::ranges::any_of(
        table_.own(), [&](const Rank& rank) { return rank.running() && rank.pid == info.si_pid; });
    if (is_rank) return;  // its own event follows, in the order of the deaths
    const RankEnd end{now_ns, info.si_code != CLD_EXITED, info.si_status};
    const pid_t group = ::getpgid(info.si_pid);
    for (Rank& rank : table_.own()) {
      if (rank.pid == group && counts) rank.take_orphan(end);
    }
    ::waitpid(info.si_pid, nullptr, 0);
  }
}

void LocalRanks::adopt_orphan_ends() {
  for (Rank& rank : table_.own()) {
    if (rank.orphan) rank.end = rank.orphan;
  }
}

}  // namespace launcher
