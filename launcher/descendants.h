// The descendants of this process, however deep.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <set>

namespace launcher {

/// Makes this process the new parent of descendants whose parent died, so that none is lost.
void adopt_orphans();

/// Returns whether this process still has a child, ended but unreaped ones included.
[[nodiscard]] bool has_children();

/// Returns whether the process's main thread has ended, and nobody has waited for the process.
[[nodiscard]] bool is_zombie(pid_t pid);

/// The process groups of the descendants that have not ended.
[[nodiscard]] std::set<pid_t> running_groups();

/// Sends a signal to every process below this one.
void signal_descendants(int signal);

/// Sends a signal that would end most programs to the processes of a group that handle it: to the
/// leader if it does, else to the members that do, else to the leader all the same.
void notify_group(pid_t leader, int signal);

/// Reaps every child that has ended.
void reap_all();

/// Kills every process below this one, and has `reap` called for those that have ended; gives up at
/// the deadline.
///
/// Returns: whether none is left.
bool kill_descendants(std::chrono::milliseconds limit,
                      const std::function<void()>& reap = &reap_all);

}  // namespace launcher
