// The first error of an NCCL group.
#pragma once

#include <atomic>
#include <chrono>
#include <exception>
#include <mutex>
#include <string>

#include "dtrain/comm/call_ring.h"
#include "dtrain/comm/queued_group.h"
#include "dtrain/comm/transport_failure.h"

namespace dtrain::cuda {

/// Keeps the first error of a group, which ends it: the watchdog then aborts the calls in flight.
///
/// Threads: any.
class GroupError {
 public:
  /// identity: must outlive this. timeout: of the group's calls.
  GroupError(const comm::GroupIdentity& identity, std::chrono::milliseconds timeout)
      : identity_(identity), timeout_(timeout) {}

  [[nodiscard]] bool is_set() const { return is_set_; }
  /// Returns the error; null if there is none.
  [[nodiscard]] std::exception_ptr get() const;
  /// No-op if there is no error.
  void rethrow() const;
  /// Sets the error; no-op if there is one.
  void set(std::exception_ptr error) noexcept;
  /// Sets an error that names the call.
  void set(const comm::CallRecord& call, const comm::TransportFailure& failure);
  /// Sets Error{comm} with the reason.
  void set(const std::string& reason) noexcept;

 private:
  const comm::GroupIdentity& identity_;
  const std::chrono::milliseconds timeout_;
  mutable std::mutex mutex_;
  std::exception_ptr error_;
  std::atomic<bool> is_set_{false};
};

}  // namespace dtrain::cuda
