// The handle of an operation under way.
#pragma once

#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>

#include "dtrain/comm/call_ring.h"

namespace dtrain::comm {

/// The end of one operation: its executor sets it once, its Works wait for it.
///
/// Threads: any; finish() or fail() exactly once.
class Completion {
 public:
  /// Time spent in wait() is added to `ring`'s counters.
  explicit Completion(std::shared_ptr<CallRing> ring) : ring_(std::move(ring)) {}

  void finish();
  void fail(std::exception_ptr error);
  void wait();
  [[nodiscard]] bool is_completed() const;

 private:
  std::shared_ptr<CallRing> ring_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool completed_ = false;
  std::exception_ptr error_;
};

/// The handle of an operation under way. A value: copies speak of the same operation, which goes on
/// whether or not anyone waits. The default one is complete.
///
/// Throws:  wait and wait_host rethrow the operation's error, every time they are called.
/// Threads: any.
class [[nodiscard]] Work {
 public:
  Work() = default;
  explicit Work(std::shared_ptr<Completion> completion) : completion_(std::move(completion)) {}

  /// Orders the caller's stream after the operation; on the CPU it blocks until the operation ends.
  void wait();
  /// Blocks until the operation has ended.
  void wait_host();
  /// Never blocks; true also after an error.
  [[nodiscard]] bool is_completed() const;

 private:
  std::shared_ptr<Completion> completion_;
};

}  // namespace dtrain::comm
