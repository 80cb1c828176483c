// Where this process is in its work.
#pragma once

#include <fmt/format.h>

#include <atomic>
#include <cstdint>
#include <string>

namespace dtrain::base {

/// Written as the work goes on, read when somebody asks what a process that is stuck was doing.
///
/// Threads: one writes, any read.
class Activity {
 public:
  /// phase: a string with static storage, "the update"; block: that is worked on, -1: none.
  void enter(const char* phase, std::int64_t block = -1) noexcept {
    phase_.store(phase, std::memory_order_relaxed);
    block_.store(block, std::memory_order_relaxed);
    is_long_.store(false, std::memory_order_relaxed);
    count_.fetch_add(1, std::memory_order_relaxed);
  }
  /// A phase that may take long without entering another one.
  void enter_long(const char* phase) noexcept {
    enter(phase);
    is_long_.store(true, std::memory_order_relaxed);
  }
  /// step: steps that are done.
  void finish_step(std::int64_t step) noexcept { step_.store(step, std::memory_order_relaxed); }

  /// How often it was written; the same number twice: nothing has advanced meanwhile.
  [[nodiscard]] std::uint64_t count() const noexcept { return count_; }
  [[nodiscard]] bool is_long() const noexcept { return is_long_; }
  /// "in the backward pass, block 3, of step 12", "in saving after step 12".
  [[nodiscard]] std::string describe() const {
    const std::int64_t block = block_.load(std::memory_order_relaxed);
    const std::int64_t step = step_.load(std::memory_order_relaxed);
    if (is_long_)
      return fmt::format("in {} after step {}", phase_.load(std::memory_order_relaxed), step);
    return fmt::format("in {}{} of step {}", phase_.load(std::memory_order_relaxed),
                       block < 0 ? std::string() : fmt::format(", block {},", block), step + 1);
  }

 private:
  std::atomic<const char*> phase_ = "the start";
  std::atomic<std::int64_t> block_ = -1;  // none
  std::atomic<std::int64_t> step_ = 0;
  std::atomic<bool> is_long_ = false;
  std::atomic<std::uint64_t> count_ = 0;
};

}  // namespace dtrain::base
