// Process-level services: start and end of a program, standard output, signals, limits on files and
// threads, and the host's identity.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace dtrain::base {

/// If the caller closed any of descriptors 0 to 2, opens them on /dev/null; otherwise messages
/// would be written into the next file opened. Ignores SIGPIPE, so that writing to a broken pipe is
/// an error. Call first in main.
void ensure_standard_streams();

/// Ignores SIGXFSZ, so that a write beyond `ulimit -f` is an error that names the file. Child
/// processes inherit this unless they restore the default.
void ignore_file_size_signal();

/// Blocks SIGUSR1 and SIGUSR2, with which a batch system asks a run to save, until
/// train::StopRequests handles them. Without this they would kill the process during its start.
void block_save_signals();

/// Flushes output and exits with `status` without running static destructors: those of LibTorch
/// take 80 ms, a quarter of a short run. Under a leak sanitizer they do run.
[[noreturn]] void end_process(int status);

/// Writes text to standard output, unbuffered. Returns false if the reader has closed the pipe
/// (`| head`), which is not an error.
///
/// Throws: Error{usage} if the text cannot be written, e.g. to a full disk.
bool print(std::string_view text);

/// Raises this process's soft limit on open files (ulimit -n) to the hard limit.
void raise_open_file_limit() noexcept;

/// Returns whether this process can open `count` more files.
[[nodiscard]] bool can_open_files(std::int64_t count) noexcept;

/// Checks that `count` threads can run at once by starting and ending them. Without this check, a
/// library that cannot start its threads later would hang or end the process.
///
/// Throws: Error{memory} with the number of threads that could be started, and the reason.
void require_threads(std::int64_t count);

/// Appends the limit on open files, and how to raise it, to a message with "Too many open files".
[[nodiscard]] std::string with_open_file_limit(std::string message);

/// Installs handlers with which SIGINT, SIGTERM, SIGHUP, SIGQUIT and SIGUSR1 end the process; the
/// kernel does not apply their default action to process 1 of a container. Ignored signals stay
/// ignored, e.g. SIGHUP under nohup. Unblocks all of them except SIGUSR1. Call first in main.
void end_on_stop_signals() noexcept;

/// Form of a stop line. without_signal: for ranks of a launcher that sends SIGTERM regardless of
/// the signal that it received.
enum class StopLine { with_signal, without_signal };

/// Makes the handlers of end_on_stop_signals first write a stop line to standard error: "dtrain:
/// stopped by SIGINT" or "dtrain: stopped", followed by `rest`. No stop line if `rest` is null.
/// rest: must outlive main.
void print_on_stop_signal(const char* rest, StopLine line = StopLine::with_signal) noexcept;

/// Writes the stop line, if any, and ends the process as end_by_signal. Async-signal-safe.
[[noreturn]] void end_by_stop_signal(int signal) noexcept;

/// Returns whether this process ignores the signal, e.g. SIGHUP under nohup.
[[nodiscard]] bool is_ignored(int signal) noexcept;

/// Ends the process by the signal's default action. Process 1 of a container, where that has no
/// effect, exits with status 128 + signal. Async-signal-safe.
[[noreturn]] void end_by_signal(int signal) noexcept;

/// Returns an id of the running system (boot id) and network namespace. Only processes with equal
/// ids can share memory. Virtual machines from one snapshot may have equal ids.
///
/// Throws: Error{comm} naming the file that cannot be read.
[[nodiscard]] std::string host_of_process();

}  // namespace dtrain::base
