// Processes below this one, the pipes between them, and what their signals are called.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <set>
#include <string>
#include <string_view>

#include "dtrain/base/io/descriptor.h"

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

struct Pipe {
  dtrain::base::Descriptor reader;
  dtrain::base::Descriptor writer;
};

/// Makes a pipe whose ends close on exec, and whose reader does not block.
///
/// Throws: Error{spawn}.
[[nodiscard]] Pipe make_pipe();

/// Returns whether a read gives something, or the end, within `limit`.
[[nodiscard]] bool is_readable_within(const dtrain::base::Descriptor& reader,
                                      std::chrono::milliseconds limit);

/// "SIGTERM"; the number of a signal without a name.
[[nodiscard]] std::string signal_name(int signal);

/// The signal that another launcher names by its number; 0: none.
[[nodiscard]] int signal_in(std::string_view text);

/// Returns whether a signal to dtrun asks the job to stop. SIGUSR1 does: dtrain saves and stops.
[[nodiscard]] bool asks_to_stop(int signal);

/// Stops this process as Ctrl-Z does by default and returns once it is continued. Returns at once
/// in an orphaned process group, which no shell could continue. SIGTSTP is blocked before and
/// after.
void stop_until_continued();

}  // namespace launcher
