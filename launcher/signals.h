// What signals are called, and which ones ask a job to stop.
#pragma once

#include <string>

namespace launcher {

/// "SIGTERM"; the number of a signal without a name.
[[nodiscard]] std::string signal_name(int signal);

/// Returns whether a signal to dtrun asks the job to stop. SIGUSR1 does: dtrain saves and stops.
[[nodiscard]] bool asks_to_stop(int signal);

}  // namespace launcher
