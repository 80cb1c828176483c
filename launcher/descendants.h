// The processes that came from this one, however deep.
#pragma once

#include <chrono>

namespace launcher {

/// Makes this process the new parent of descendants whose parent died, so that none is lost.
void adopt_orphans();

/// Whether this process still has a child, ended but unreaped ones included.
[[nodiscard]] bool has_children();

/// Sends a signal to every process below this one.
void signal_descendants(int signal);

/// Kills and reaps every process below this one; gives up at the deadline.
///
/// Returns: whether none is left.
bool kill_descendants(std::chrono::milliseconds limit);

}  // namespace launcher
