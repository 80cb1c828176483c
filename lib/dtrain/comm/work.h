// The handle of an operation under way.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <utility>

#include "dtrain/comm/call_ring.h"

namespace dtrain::comm {

/// The end of one operation. A backend implements it; Works refer to it.
///
/// Throws:  wait and wait_host rethrow the operation's error, every time they are called.
/// Threads: any.
class Completion {
 public:
  virtual ~Completion() = default;

  /// Orders the caller's stream after the operation. It need not block: whatever the caller puts on
  /// its stream from now on sees the result. Host memory has no stream: there it blocks.
  virtual void wait() = 0;
  /// Blocks the calling thread until the operation has ended.
  virtual void wait_host() = 0;
  /// Never blocks; true also after an error.
  [[nodiscard]] virtual bool is_completed() const = 0;
};

/// The end of an operation that a thread carries out: it sets the end once, Works wait for it.
///
/// Threads: any; finish() or fail() exactly once.
class HostCompletion : public Completion {
 public:
  /// Time spent in waits is added to `ring`'s counters. number: of the call in it, for a profile.
  explicit HostCompletion(std::shared_ptr<CallRing> ring, std::uint64_t number = 0)
      : ring_(std::move(ring)), number_(number) {}

  void finish() { end(nullptr); }
  void fail(std::exception_ptr error) { end(std::move(error)); }

  void wait() override { wait_host(); }
  void wait_host() override;
  [[nodiscard]] bool is_completed() const override;

 private:
  /// Called by a waiting thread before it blocks; may execute the operation.
  virtual void help() {}
  void end(std::exception_ptr error);

  std::shared_ptr<CallRing> ring_;
  std::uint64_t number_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool completed_ = false;
  std::exception_ptr error_;
};

/// The handle of an operation under way. A value: copies refer to the same operation, which
/// proceeds whether or not anyone waits. The default one is complete.
///
/// Throws:  as Completion.
/// Threads: any.
class [[nodiscard]] Work {
 public:
  Work() = default;
  explicit Work(std::shared_ptr<Completion> completion) : completion_(std::move(completion)) {}

  /// As Completion::wait: for whoever uses the result on a stream.
  void wait() {
    if (completion_) completion_->wait();
  }
  /// As Completion::wait_host: for whoever reads the result on the host.
  void wait_host() {
    if (completion_) completion_->wait_host();
  }
  [[nodiscard]] bool is_completed() const { return !completion_ || completion_->is_completed(); }

 private:
  std::shared_ptr<Completion> completion_;
};

}  // namespace dtrain::comm
