// Tracks the calls in flight of an NCCL group, fails overdue calls and keeps the first error.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "cuda/nccl/communicator.h"
#include "dtrain/comm/call_ring.h"
#include "dtrain/comm/process_group.h"
#include "dtrain/comm/queued_group.h"

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

/// The calls in flight, the communicators and the first error of a group.
///
/// Threads: any.
class GroupState {
 public:
  GroupState(comm::GroupIdentity identity, const comm::GroupOptions& options, c10::Device device,
             std::shared_ptr<comm::ProcessGroup> host)
      : identity_(std::move(identity)),
        options_(options),
        device_(device),
        host_(std::move(host)) {}

  [[nodiscard]] const comm::GroupIdentity& identity() const { return identity_; }
  [[nodiscard]] const comm::GroupOptions& options() const { return options_; }
  [[nodiscard]] c10::Device device() const { return device_; }
  /// The host group of the same ranks.
  [[nodiscard]] comm::ProcessGroup& host() const { return *host_; }
  /// Must be held while posting a call of host(), which several threads do.
  [[nodiscard]] std::mutex& host_mutex() { return host_mutex_; }
  [[nodiscard]] comm::CallRing& ring() { return ring_; }

  /// Returns the first error; null if there is none.
  [[nodiscard]] std::exception_ptr error() const;
  void rethrow_error() const;
  /// Records the first error; the watchdog then aborts the calls in flight.
  void fail(std::exception_ptr error) noexcept;
  /// Fails with an error that names the call.
  void fail(const comm::CallRecord& call, const TransportFailure& failure);
  /// Fails with Error{comm} and the reason.
  void fail(const std::string& reason) noexcept;

  /// Adds a communicator to abort with the group; aborts it at once if the group already ended.
  void add(std::shared_ptr<Communicator> communicator);
  /// Watches a call that has been enqueued on `stream`, after its predecessors there.
  void watch(const c10::Stream& stream, std::shared_ptr<DeviceCall> call);
  /// Counts a call that will be watched once its connection is established; until end_post().
  void begin_post() { ++num_being_posted_; }
  void end_post() { --num_being_posted_; }
  [[nodiscard]] bool has_pending() const;
  /// Records completed calls in the ring; callable with any current device.
  void record_completions();
  /// Records starts and completions of calls, and detects overdue calls and failures; the watchdog
  /// calls it periodically. Returns true if the group has failed and end() has not been called.
  [[nodiscard]] bool poll() noexcept;
  /// Ends a failed group: aborts its host group, which informs the peers. Returns the communicators
  /// to abort.
  [[nodiscard]] std::vector<std::shared_ptr<Communicator>> end() noexcept;
  /// Releases the communicators; after an error, aborts them first.
  void close() noexcept;

 private:
  using Calls = std::deque<std::shared_ptr<DeviceCall>>;

  void record_completions(Calls& calls);
  void check_calls(Calls& calls);
  void check_communicators();

  const comm::GroupIdentity identity_;
  const comm::GroupOptions options_;
  const c10::Device device_;
  const std::shared_ptr<comm::ProcessGroup> host_;
  std::mutex host_mutex_;
  comm::CallRing ring_;

  mutable std::mutex error_mutex_;
  std::exception_ptr error_;
  std::atomic<bool> has_failed_{false};
  std::atomic<std::int64_t> num_being_posted_{0};

  mutable std::mutex mutex_;  // guards the members below
  std::vector<std::shared_ptr<Communicator>> communicators_;
  std::map<c10::StreamId, Calls> pending_;  // by stream
  std::map<const DeviceCall*, base::Clock::time_point> begun_;
  bool has_ended_ = false;
};

}  // namespace dtrain::cuda
