// Finds, signals and reaps descendant processes; creates pipes; converts signals to names.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <set>
#include <string>
#include <string_view>

#include "dtrain/base/io/descriptor.h"

namespace launcher {

/// Makes this process a child subreaper: it adopts orphaned descendants, so none is lost.
void adopt_orphans();

/// Returns whether this process still has a child, including ended but unreaped ones.
[[nodiscard]] bool has_children();

/// Returns whether the process's main thread has ended, and the process is not reaped.
[[nodiscard]] bool is_zombie(pid_t pid);

/// The process groups of running descendants.
[[nodiscard]] std::set<pid_t> running_groups();

/// Sends a signal to every descendant process.
void signal_descendants(int signal);

/// Sends a signal whose default action ends a program to the processes of a group that handle it:
/// the leader if it does, otherwise the members that do. If none does, sends it to the leader.
void notify_group(pid_t leader, int signal);

/// Reaps every child that has ended.
void reap_all();

/// Kills every descendant, and calls `reap` for those that have ended; gives up after `limit`.
///
/// Returns: whether none is left.
bool kill_descendants(std::chrono::milliseconds limit,
                      const std::function<void()>& reap = &reap_all);

struct Pipe {
  dtrain::base::Descriptor reader;
  dtrain::base::Descriptor writer;
};

/// Creates a pipe whose ends close on exec, and whose reader does not block.
///
/// Throws: Error{spawn}.
[[nodiscard]] Pipe make_pipe();

/// Returns whether data or end of file can be read within `limit`.
[[nodiscard]] bool is_readable_within(const dtrain::base::Descriptor& reader,
                                      std::chrono::milliseconds limit);

/// "SIGTERM"; for a signal without a name, its number.
[[nodiscard]] std::string signal_name(int signal);

/// Parses the number of a signal from another launcher; 0: none.
[[nodiscard]] int signal_in(std::string_view text);

/// Returns whether a signal to dtrun asks the job to stop. SIGUSR1 does: dtrain saves and stops.
[[nodiscard]] bool asks_to_stop(int signal);

/// Stops this process as Ctrl-Z does by default and returns once it is continued. Returns at once
/// in an orphaned process group, which no shell could continue. SIGTSTP is blocked before and
/// after.
void stop_until_continued();

}  // namespace launcher
