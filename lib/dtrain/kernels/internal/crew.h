// Threads that help the one that owns them with its work.
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

/// Leaves a thread out for a while after it had no processor in the middle of its work, and for
/// longer each time: where another process has the thread's core, all others wait at the end of the
/// work for as long as the kernel lets that process run, which is more than the thread is good for.
///
/// Threads: one reports, another may ask.
class Rest {
 public:
  /// lost: how long the thread had no processor; of: how long its work took.
  void report(std::chrono::nanoseconds lost, std::chrono::nanoseconds of) {
    const bool is_disturbed = lost > kNoticed && lost * 4 > of;
    if (!is_disturbed) {
      if (++calm_ > kCalm) pause_ = kShortest;
      return;
    }
    calm_ = 0;
    end_.store(base::Clock::now() + pause_, std::memory_order_relaxed);
    pause_ = std::min<std::chrono::nanoseconds>(2 * pause_, kLongest);
  }

  [[nodiscard]] bool is_over() const {
    const auto end = end_.load(std::memory_order_relaxed);
    return end == base::Clock::time_point{} || base::Clock::now() >= end;
  }

  static constexpr std::chrono::milliseconds kShortest{20};
  static constexpr std::chrono::milliseconds kLongest{640};

 private:
  static constexpr std::chrono::microseconds kNoticed{200};
  static constexpr std::int64_t kCalm = 1000;  // pieces of work without a disturbance

  std::atomic<base::Clock::time_point> end_{};
  std::chrono::nanoseconds pause_ = kShortest;
  std::int64_t calm_ = 0;
};

/// The thread that makes it, worker 0, and helpers that it keeps: workers 1, 2, ...
///
/// Work never waits for a helper that has not begun, so one whose core another process has costs
/// nothing. One that lost its core in the middle of a piece of work, which then had to wait for it,
/// is left out for a while (Rest).
///
/// Threads: one caller, for construction and destruction too.
class Crew {
 public:
  using Work = std::function<void(std::int64_t worker)>;

  struct Options {
    std::int64_t workers = 1;  ///< with the caller; fewer where the system starts no more threads
    /// How long a thread looks for work, or for the end of the others', before it sleeps.
    std::chrono::nanoseconds spin{};
    std::function<void(std::int64_t worker)> begin;  ///< what a helper calls first
  };

  explicit Crew(const Options& options);
  ~Crew();
  Crew(const Crew&) = delete;
  Crew& operator=(const Crew&) = delete;

  /// As asked for.
  [[nodiscard]] std::int64_t workers() const { return options_.workers; }

  /// Calls work(0) here and work(i) in helpers that come before it returns, of whom `helpers` are
  /// called; one may come twice. Returns when all that came have returned. work must not throw.
  void run(std::int64_t helpers, const Work& work) noexcept;

 private:
  enum class Call : int { none, work, end };
  struct alignas(64) Helper {
    std::atomic<Call> call = Call::none;
    Rest rest;
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
  // How many helpers are in the work, and whether one may still join it.
  alignas(64) std::atomic<std::uint32_t> joined_ = 0;
  std::deque<Helper> helpers_;
};

}  // namespace dtrain::kernels
