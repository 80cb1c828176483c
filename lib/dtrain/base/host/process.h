// How a program begins, prints and ends, its limits on open files and threads, and its host.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace dtrain::base {

/// Makes sure that descriptors 0 to 2 are open, on /dev/null where the caller closed them: else the
/// next file opened would get such a number, and messages would go into it. Writing to a pipe
/// without a reader becomes an error instead of a signal. Call first in main.
void secure_standard_streams();

/// Makes a write beyond `ulimit -f` an error that names the file instead of the end of the process.
/// Child processes inherit this, unless they get the default back.
void survive_file_size_limit();

/// Lets SIGUSR1 and SIGUSR2, by which a batch system asks a run to save, wait until the run answers
/// them (train::StopRequests): while it still starts they would end it.
void hold_requests_to_save();

/// Ends a program that has loaded LibTorch with `status`, once what was printed is written.
/// Destructors of static objects do not run: LibTorch's take 80 ms, a quarter of a short run, to
/// free what the system frees at once. Where a sanitizer is to look for leaks they do run.
[[noreturn]] void end_process(int status);

/// Writes text to standard output, at once. Returns false if its reader wants no more (`| head`),
/// which is no error.
///
/// Throws: Error{usage} if it cannot be written (full disk).
bool print(std::string_view text);

/// Raises this process's limit on open files (ulimit -n) to the most that it may have.
void raise_open_file_limit() noexcept;

/// Returns whether this process can open that many more files.
[[nodiscard]] bool can_open_files(std::int64_t count) noexcept;

/// Starts so many threads at once and ends them again. Libraries that cannot start theirs later
/// wait for ever, or end the process.
///
/// Throws: Error{memory} telling how many the system started, and why no more.
void require_threads(std::int64_t count);

/// `message`, and where it says "Too many open files" also the limit and how to raise it.
[[nodiscard]] std::string with_open_file_limit(std::string message);

/// From now on SIGINT, SIGTERM, SIGHUP, SIGQUIT and SIGUSR1 end the process by themselves, as by
/// default. A handler does it, since the kernel leaves the default out for process 1 of a
/// container. Signals that the caller ignores stay ignored, as SIGHUP under nohup. All but SIGUSR1
/// are unblocked: else a caller that blocks them would make this process deaf. Call first in main.
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

/// Names what two processes must share to reach each other: the running system and its network
/// namespace. Virtual machines that were started from one snapshot may have one name.
///
/// Throws: Error{comm} naming the file that cannot be read.
[[nodiscard]] std::string host_of_process();

}  // namespace dtrain::base
