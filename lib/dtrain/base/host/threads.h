// Helpers to start threads, and the CPU hint for spin loops.
#pragma once

#include <signal.h>

#include <future>
#include <system_error>
#include <thread>

namespace dtrain::base {

/// Runs `task` in a new thread; the future's destructor waits until it has ended. If no thread can
/// be started, runs `task` in the calling thread.
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

/// Starts a thread with all signals blocked, so that the main thread receives them.
///
/// Throws: std::system_error if the thread cannot be started.
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

/// Hints to the CPU that the caller spins.
inline void pause_briefly() noexcept {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace dtrain::base
