// A thread pool with one caller. A call does not wait for helper threads that have not started it,
// for example because no core is free.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <thread>

#include "dtrain/base/clock.h"

namespace dtrain::kernels {

/// Exponential back-off for a worker that was preempted during its work. If another process
/// occupies the worker's core, all other threads wait at the end of the work for a whole scheduler
/// time slice, which costs more than the worker contributes.
///
/// Threads: report() from one, has_expired() from any.
class WorkerBackoff {
 public:
  /// lost: how long the thread was preempted during the `elapsed` time of its work.
  void report(std::chrono::nanoseconds lost, std::chrono::nanoseconds elapsed) {
    const bool is_disturbed = lost > kMinLost && lost * 4 > elapsed;
    if (!is_disturbed) {
      if (++undisturbed_ > kUndisturbedRuns) pause_ = kMinPause;
      return;
    }
    undisturbed_ = 0;
    end_.store(base::Clock::now() + pause_, std::memory_order_relaxed);
    pause_ = std::min<std::chrono::nanoseconds>(2 * pause_, kMaxPause);
  }

  [[nodiscard]] bool has_expired() const {
    const auto end = end_.load(std::memory_order_relaxed);
    return end == base::Clock::time_point{} || base::Clock::now() >= end;
  }

  static constexpr std::chrono::milliseconds kMinPause{20};
  static constexpr std::chrono::milliseconds kMaxPause{640};

 private:
  static constexpr std::chrono::microseconds kMinLost{200};
  static constexpr std::int64_t kUndisturbedRuns = 1000;  // after which the pause is reset

  std::atomic<base::Clock::time_point> end_{};
  std::chrono::nanoseconds pause_ = kMinPause;
  std::int64_t undisturbed_ = 0;
};

/// The creating thread, worker 0, and its persistent helpers: workers 1, 2, ...
///
/// Work never waits for a helper that has not started, so a helper without a core costs nothing. A
/// helper that was preempted during its work, which delays the others, is skipped for a while
/// (WorkerBackoff).
///
/// Threads: one caller, for construction and destruction too.
class ThreadPool {
 public:
  using Work = std::function<void(std::int64_t worker)>;

  struct Options {
    std::int64_t workers = 1;  ///< caller included; fewer if the system cannot start more threads
    /// How long a thread spins for new work, or for the others to finish, before it sleeps.
    std::chrono::nanoseconds spin{};
    std::function<void(std::int64_t worker)> begin;  ///< called once at the start of each helper
  };

  explicit ThreadPool(const Options& options);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  /// The requested number of workers.
  [[nodiscard]] std::int64_t workers() const { return options_.workers; }

  /// Wakes `helpers` helpers, calls work(0) here and work(i) in each helper that arrives before
  /// work(0) returns; a helper may arrive twice. Returns when all of them have returned. work must
  /// not throw.
  void run(std::int64_t helpers, const Work& work) noexcept;

 private:
  enum class Call : int { none, work, end };
  struct alignas(64) Helper {
    std::atomic<Call> call = Call::none;
    WorkerBackoff backoff;
    std::thread thread;
  };

  void help(std::int64_t worker, Helper& self);
  void call(std::int64_t helpers);
  void finish();
  [[nodiscard]] bool join();
  template <typename Word>
  void wait_while(const std::atomic<Word>& word, Word value) const;

  const Options options_;
  const Work* work_ = nullptr;
  // Number of helpers in the work, and whether helpers may still join it (kOpen).
  alignas(64) std::atomic<std::uint32_t> joined_ = 0;
  std::deque<Helper> helpers_;
};

}  // namespace dtrain::kernels
