#include "launcher/job_ranks.h"

#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <set>

#include "launcher/processes.h"

namespace launcher {

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
