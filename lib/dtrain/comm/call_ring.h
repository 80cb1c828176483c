// Records a process group's latest calls for hang reports and profiles, and counts all calls.
#pragma once

#include <c10/core/ScalarType.h>

#include <array>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "dtrain/base/clock.h"

namespace dtrain::comm {

/// The progress of a call.
enum class CallState { queued, running, done, failed };

/// One call of a process group.
struct CallRecord {
  std::uint64_t number = 0;  ///< 1 for the first call of the group
  std::string_view op;       ///< a string with static storage, e.g. "all_reduce"
  std::int64_t peer = -1;    ///< world rank of the peer or of the root; -1: all
  at::ScalarType dtype = at::ScalarType::Byte;
  std::int64_t count = 0;       ///< elements of the caller's tensor
  std::int64_t bytes_sent = 0;  ///< by this rank; known when the call is done
  base::Clock::time_point queued;
  base::Clock::time_point started;  ///< set unless queued
  base::Clock::time_point ended;    ///< set if done or failed
  CallState state = CallState::queued;
};

/// "call 17, all_reduce of 1024 float32 (4096 bytes)".
[[nodiscard]] std::string describe(const CallRecord& record);

/// Formats a line for dtrun (docs/guide/dtrun.md) about the oldest unfinished call, or the last
/// call if all have finished; call 0 if there is none. Failed calls count as unfinished. group: the
/// same name on all ranks. awaited: as ProcessGroup::awaited().
[[nodiscard]] std::string call_line(const std::vector<CallRecord>& records, std::string_view group,
                                    std::int64_t awaited);

struct CallCounters {
  std::int64_t calls = 0;
  std::int64_t bytes_sent = 0;
  double wait_seconds = 0;  ///< time callers were blocked in Work::wait, wait_host and barrier
};

/// The calls of a group that ended between begin_keeping() and end_keeping().
struct KeptCalls {
  std::vector<CallRecord> records;  ///< in order of completion
  std::int64_t num_lost = 0;        ///< calls beyond the capacity
  CallCounters counters;            ///< of that period alone
};

/// Numbers, times and counts the calls of one group, and keeps the last kCapacity of them, or all
/// of them during profiling.
///
/// Threads: all members from any thread.
class CallRing {
 public:
  static constexpr std::size_t kCapacity = 256;

  /// Opens a call and returns its number. Reads op, peer, dtype and count of `call`.
  std::uint64_t add(const CallRecord& call);
  void start(std::uint64_t number);
  void finish(std::uint64_t number, std::int64_t bytes_sent);
  void fail(std::uint64_t number);
  void add_wait(base::Seconds waited);

  [[nodiscard]] CallCounters counters() const;
  /// Starts to keep every call that ends, up to `capacity` of them.
  void begin_keeping(std::size_t capacity);
  [[nodiscard]] KeptCalls end_keeping();

  /// The calls in the ring, oldest first.
  [[nodiscard]] std::vector<CallRecord> records() const;

 private:
  CallRecord* find(std::uint64_t number);
  void keep(const CallRecord& record);

  mutable std::mutex mutex_;
  std::array<CallRecord, kCapacity> records_;  // call n lies at n % kCapacity
  CallCounters counters_;
  std::size_t keep_capacity_ = 0;  // 0: not keeping calls
  KeptCalls kept_;                 // its counters: those at the beginning
};

}  // namespace dtrain::comm
