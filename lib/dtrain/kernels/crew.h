// Threads that help the one that owns them with its work.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <thread>

#include "dtrain/kernels/rest.h"

namespace dtrain::kernels {

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

  void start(std::int64_t worker);
  void help(std::int64_t worker, Helper& self);
  void call(std::int64_t helpers);
  void finish();
  [[nodiscard]] bool join();
  void leave();
  template <typename Word>
  void wait_while(const std::atomic<Word>& word, Word value) const;

  const Options options_;
  const Work* work_ = nullptr;
  // How many helpers are in the work, and whether one may still join it.
  alignas(64) std::atomic<std::uint32_t> joined_ = 0;
  std::deque<Helper> helpers_;
};

}  // namespace dtrain::kernels
