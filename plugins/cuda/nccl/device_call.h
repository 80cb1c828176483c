// The calls of an NCCL group, which run on streams: their handles, and the calls in flight.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <atomic>
#include <chrono>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "cuda/nccl/group_error.h"
#include "dtrain/base/clock.h"
#include "dtrain/comm/call_ring.h"
#include "dtrain/comm/process_group.h"

namespace dtrain::cuda {

class GroupState;

/// The handle of one call of a group, which runs on a stream.
///
/// Threads: comm::Completion's members from any thread; the others from the thread that posts.
class DeviceCall final : public comm::Completion {
 public:
  /// Orders the call after the work that is already on the device's current stream.
  DeviceCall(comm::CallRecord record, std::shared_ptr<GroupState> group);

  [[nodiscard]] const comm::CallRecord& record() const { return record_; }
  ~DeviceCall() override;

  /// Makes `stream` wait until the call may begin, and keeps the tensors alive until a stream has
  /// waited for the call: later uses of their memory are then ordered after it.
  void begin_on(const c10::Stream& stream, std::vector<at::Tensor> tensors);
  /// Marks the call as completely enqueued on `stream`. Call once, before GroupState::watch.
  void end_on(const c10::Stream& stream);

  void wait() override;
  void wait_host() override;
  [[nodiscard]] bool is_completed() const override;

  /// True if the stream has reached the call; for the watchdog.
  [[nodiscard]] bool has_begun() const { return ready_.query(); }
  /// True if the call completed without being aborted.
  [[nodiscard]] bool has_ended() const;

 private:
  void wait_until_posted() const;
  void release();

  const comm::CallRecord record_;
  const std::shared_ptr<GroupState> group_;
  c10::Event ready_;
  c10::Event end_;
  std::atomic<bool> is_posted_{false};
  mutable std::atomic<bool> has_ended_{false};
  std::mutex mutex_;
  std::optional<c10::Stream> stream_;
  std::vector<at::Tensor> tensors_;
};

/// The enqueued calls of a group that have not ended, in order on each stream.
///
/// Threads: one caller at a time.
class InFlightCalls {
 public:
  /// ring: records the calls' starts and ends. timeout: from the start of a call.
  InFlightCalls(comm::CallRing& ring, GroupError& error, std::chrono::milliseconds timeout)
      : ring_(ring), error_(error), timeout_(timeout) {}

  /// Adds a call that has been enqueued on `stream`, after its predecessors there.
  void add(const c10::Stream& stream, std::shared_ptr<DeviceCall> call);
  [[nodiscard]] bool is_empty() const;
  /// Records completed calls in the ring, and removes them.
  void record_completions();
  /// Records starts and completions, and sets the error if a call is overdue. No-op after an error:
  /// a failed device does not answer queries.
  void check();
  /// Records all calls as failed in the ring, and removes them.
  void fail_all();

 private:
  using Calls = std::deque<std::shared_ptr<DeviceCall>>;

  void record_completions(Calls& calls);
  void check(Calls& calls);

  comm::CallRing& ring_;
  GroupError& error_;
  const std::chrono::milliseconds timeout_;
  std::map<c10::StreamId, Calls> pending_;  // by stream
  std::map<const DeviceCall*, base::Clock::time_point> begun_;
};

}  // namespace dtrain::cuda
