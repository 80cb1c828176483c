// How a program begins, prints and ends, and its limit on open files.
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

/// `message`, and where it says "Too many open files" also the limit and how to raise it.
[[nodiscard]] std::string with_open_file_limit(std::string message);

}  // namespace dtrain::base
