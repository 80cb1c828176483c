// Raises the limit on open files at start, and names it in errors.
#pragma once

#include <cstdint>
#include <string>

namespace dtrain::base {

/// Raises this process's limit on open files (ulimit -n) to the most that it may have.
void raise_open_file_limit() noexcept;

/// Returns whether this process can open that many more files.
[[nodiscard]] bool can_open_files(std::int64_t count) noexcept;

/// `message`, and where it says "Too many open files" also the limit and how to raise it.
[[nodiscard]] std::string with_open_file_limit(std::string message);

}  // namespace dtrain::base
