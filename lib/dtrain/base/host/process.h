// Process-level services: start and end of a program, standard output, signals, limits on files and
// threads, and the host's identity.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace dtrain::base {

/// Opens descriptors 0 to 2 on /dev/null if the caller closed them, since otherwise messages would
/// go into the next file opened. Ignores SIGPIPE, so that writing to a broken pipe is an error.
/// Call first in main.
void ensure_standard_streams();

/// Ignores SIGXFSZ, so that a write beyond `ulimit -f` is an error that names the file. Child
/// processes inherit this unless they restore the default.
void ignore_file_size_signal();

/// Blocks SIGUSR1 and SIGUSR2, by which a batch system asks a run to save, until the run handles
/// them (train::StopRequests): during the start they would end it.
void block_save_signals();

/// Flushes output and exits with `status` without running destructors of static objects: LibTorch's
/// take 80 ms, a quarter of a short run. Under a leak sanitizer they do run.
[[noreturn]] void end_process(int status);

/// Writes text to standard output, unbuffered. Returns false if the reader has closed the pipe
/// (`| head`), which is not an error.
///
/// Throws: Error{usage} if it cannot be written (full disk).
bool print(std::string_view text);

/// Raises this process's soft limit on open files (ulimit -n) to the hard limit.
void raise_open_file_limit() noexcept;

/// Returns whether this process can open `count` more files.
[[nodiscard]] bool can_open_files(std::int64_t count) noexcept;

/// Checks that `count` threads can run at once, by starting and ending them. Libraries that fail to
/// start theirs later hang or end the process.
///
/// Throws: Error{memory} with the number that the system started, and the reason.
void require_threads(std::int64_t count);

/// Appends the limit on open files, and how to raise it, to a message with "Too many open files".
[[nodiscard]] std::string with_open_file_limit(std::string message);

/// Makes SIGINT, SIGTERM, SIGHUP, SIGQUIT and SIGUSR1 end the process, by a handler, since the
/// kernel does not apply the default action to process 1 of a container. Ignored signals stay
/// ignored, e.g. SIGHUP under nohup. All but SIGUSR1 are unblocked, in case the caller has blocked
/// them. Call first in main.
void end_on_stop_signals() noexcept;

/// Form of a stop line: with or without the signal, since a launcher sends SIGTERM regardless of the
/// signal that it received.
enum class StopLine { with_signal, without_signal };

/// Makes these signals first write "dtrain: stopped by SIGINT", or "dtrain: stopped", and `rest` to
/// standard error; nothing if `rest` is null. rest: must outlive main.
void print_on_stop_signal(const char* rest, StopLine line = StopLine::with_signal) noexcept;

/// Writes that line, if any, and ends the process as end_by_signal. Async-signal-safe.
[[noreturn]] void end_by_stop_signal(int signal) noexcept;

/// Returns whether this process ignores the signal, e.g. SIGHUP under nohup.
[[nodiscard]] bool is_ignored(int signal) noexcept;

/// Ends the process by the signal's default action; process 1 of a container, which survives that,
/// exits with status 128 + signal. Async-signal-safe.
[[noreturn]] void end_by_signal(int signal) noexcept;

/// Identifies the running system (boot id) and its network namespace; processes must share both to
/// share memory. Virtual machines from one snapshot may have the same identity.
///
/// Throws: Error{comm} naming the file that cannot be read.
[[nodiscard]] std::string host_of_process();

}  // namespace dtrain::base
