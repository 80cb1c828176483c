// Starts threads as far as the system does, and finds out beforehand whether it will; what a thread
// does that waits in a loop.
#pragma once

#include <cstdint>
#include <future>
#include <system_error>

namespace dtrain::base {

/// Starts so many threads at once and ends them again. Libraries that cannot start theirs later
/// wait for ever, or end the process.
///
/// Throws: Error{memory} telling how many the system started, and why no more.
void require_threads(std::int64_t count);

/// Runs `task` in a thread of its own, for whose end the destruction of the future waits. Where the
/// system starts no more threads the task is done before this returns.
template <typename Task>
[[nodiscard]] auto start_task(const Task& task) {
  try {
    return std::async(std::launch::async, task);
  } catch (const std::system_error&) {
    std::packaged_task<decltype(task())()> here(task);
    here();
    return here.get_future();
  }
}

/// Tells the core that the caller waits in a loop.
inline void pause_briefly() noexcept {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace dtrain::base
