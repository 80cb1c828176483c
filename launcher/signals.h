// What signals are called, and which ones ask a job to stop.
#pragma once

#include <string>
#include <string_view>

namespace launcher {

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
