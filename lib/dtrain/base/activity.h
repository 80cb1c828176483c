// The activity of a process, for hang reports and heartbeats.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>

namespace dtrain::base {

/// The phase of work that a process is in, and its communication calls.
///
/// Threads: one writes, any read; has_advanced: one.
class Activity {
 public:
  /// phase: a string with static storage, e.g. "the update"; block: the current block, -1: none.
  void enter(const char* phase, std::int64_t block = -1) noexcept {
    phase_.store(phase, std::memory_order_relaxed);
    block_.store(block, std::memory_order_relaxed);
    count_.fetch_add(1, std::memory_order_relaxed);
  }
  /// step: the number of completed steps.
  void finish_step(std::int64_t step) noexcept { step_.store(step, std::memory_order_relaxed); }
  /// Sets the function that formats the communication lines of a hang report; empty: none. It is
  /// called by the thread that reads them. Returns once the previous function is no longer in use.
  void set_call_report(std::function<std::string()> calls);

  /// Returns whether a phase was entered or left since the last call, or a LongPhase exists.
  [[nodiscard]] bool has_advanced() noexcept;
  /// "in the backward pass, block 3, of step 12", "in saving after step 12".
  [[nodiscard]] std::string describe() const;
  /// The communication lines; empty if no function formats them.
  [[nodiscard]] std::string call_report() const;

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
  std::atomic<std::uint64_t> count_ = 0;  // phases entered and left
  std::uint64_t reported_count_ = 0;      // at the last has_advanced()
  mutable std::mutex calls_mutex_;
  std::function<std::string()> calls_;
};

/// Marks a phase of unbounded duration, such as a save on a slow disk: while it exists, a lack of
/// progress does not count as a hang. Phases entered meanwhile do not end it.
///
/// Threads: the one that writes the activity. Objects are destroyed in reverse order of
///          construction.
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
