// The phase of work that this process is in.
#pragma once

#include <fmt/format.h>

#include <atomic>
#include <cstdint>
#include <string>

namespace dtrain::base {

/// The phase that a process is in, which it stores as it goes, and which is read to tell what a
/// process that makes no progress was doing.
///
/// Threads: one writes, any read.
class Activity {
 public:
  /// phase: a string with static storage, "the update"; block: the block it works on, -1: none.
  void enter(const char* phase, std::int64_t block = -1) noexcept {
    phase_.store(phase, std::memory_order_relaxed);
    block_.store(block, std::memory_order_relaxed);
    count_.fetch_add(1, std::memory_order_relaxed);
  }
  /// step: the number of completed steps.
  void finish_step(std::int64_t step) noexcept { step_.store(step, std::memory_order_relaxed); }

  /// The number of phases entered and left: unchanged as long as there is no progress.
  [[nodiscard]] std::uint64_t count() const noexcept { return count_; }
  /// True while a LongPhase exists.
  [[nodiscard]] bool is_long() const noexcept { return long_phase_ != nullptr; }
  /// "in the backward pass, block 3, of step 12", "in saving after step 12".
  [[nodiscard]] std::string describe() const {
    const std::int64_t block = block_.load(std::memory_order_relaxed);
    const std::int64_t step = step_.load(std::memory_order_relaxed);
    if (const char* phase = long_phase_.load(std::memory_order_relaxed)) {
      return fmt::format("in {} after step {}", phase, step);
    }
    return fmt::format("in {}{} of step {}", phase_.load(std::memory_order_relaxed),
                       block < 0 ? std::string() : fmt::format(", block {},", block), step + 1);
  }

 private:
  friend class LongPhase;
  const char* exchange_long_phase(const char* phase) noexcept {
    count_.fetch_add(1, std::memory_order_relaxed);
    return long_phase_.exchange(phase, std::memory_order_relaxed);
  }

  std::atomic<const char*> phase_ = "the start";
  std::atomic<const char*> long_phase_ = nullptr;  // the innermost one
  std::atomic<std::int64_t> block_ = -1;           // none
  std::atomic<std::int64_t> step_ = 0;
  std::atomic<std::uint64_t> count_ = 0;
};

/// A phase whose length the process does not control, such as a save on a slow disk: while it
/// exists, a lack of progress is no sign of a hang. Phases entered meanwhile do not end it.
///
/// Threads: the one that writes the activity. Destroyed in reverse order of construction.
class LongPhase {
 public:
  /// phase: a string with static storage. `activity` must outlive this.
  LongPhase(Activity& activity, const char* phase) noexcept
      : activity_(activity), outer_(activity.exchange_long_phase(phase)) {}
  ~LongPhase() { activity_.exchange_long_phase(outer_); }
  LongPhase(const LongPhase&) = delete;
  LongPhase& operator=(const LongPhase&) = delete;

 private:
  Activity& activity_;
  const char* outer_;  // nullptr: none
};

}  // namespace dtrain::base
