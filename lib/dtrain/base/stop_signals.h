// Signals that ask a program to stop.
#pragma once

namespace dtrain::base {

/// From now on SIGINT, SIGTERM, SIGHUP, SIGQUIT and SIGUSR1 end the process by themselves, as by
/// default. A handler does it, since the kernel leaves the default out for process 1 of a container.
/// Signals that the caller ignores stay ignored, as SIGHUP under nohup. All but SIGUSR1 are
/// unblocked: else a caller that blocks them would make this process deaf. Call first in main.
void end_on_stop_signals() noexcept;

/// Whether a stop line names its signal. A launcher sends SIGTERM whatever signal it got itself.
enum class StopLine { with_signal, without_signal };

/// From now on such a signal first writes "dtrain: stopped by SIGINT", or "dtrain: stopped", and
/// `rest` to standard error; null: it writes nothing. rest: outlives the process's main.
void tell_stops(const char* rest, StopLine line = StopLine::with_signal) noexcept;

/// Writes that line, if any, and ends the process as end_by_signal. Safe in a handler.
[[noreturn]] void end_by_stop(int signal) noexcept;

/// Returns whether this process ignores the signal, as it does SIGHUP under nohup.
[[nodiscard]] bool is_ignored(int signal) noexcept;

/// Ends the process by the signal's default; process 1 of a container, which that does not end,
/// exits with status 128 + signal. Safe in a handler.
[[noreturn]] void end_by_signal(int signal) noexcept;

}  // namespace dtrain::base
