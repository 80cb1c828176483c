// Starts threads as far as the system does; what a thread does that waits in a loop.
#pragma once

#include <signal.h>

#include <future>
#include <system_error>
#include <thread>

namespace dtrain::base {

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

/// Starts a thread that takes no signals, so that the main thread gets them.
///
/// Throws: std::system_error where the system starts no more threads.
template <typename Body>
[[nodiscard]] std::thread start_without_signals(Body body) {
  sigset_t all;
  sigset_t before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    std::thread thread(body);
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return thread;
  } catch (...) {
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
    throw;
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
