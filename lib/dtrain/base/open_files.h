// The limit on open files: raised at start, named where it is met.
#pragma once

#include <cstdint>
#include <string>

namespace dtrain::base {

/// Raises this process's limit on open files (ulimit -n) to the most that it may have.
void raise_open_file_limit() noexcept;

/// Whether this process can open that many files more.
[[nodiscard]] bool can_open_files(std::int64_t count) noexcept;

/// `message`, and where it says "Too many open files" also the limit and how to raise it.
[[nodiscard]] std::string with_open_file_limit(std::string message);

}  // namespace dtrain::base
