// The state of a group that its caller, the handles of its calls and the watchdog share.
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

/// One call of a group, which runs on a stream of the group's.
///
/// Threads: wait() and the like from any; the rest as each says.
class DeviceCall final : public comm::Completion {
 public:
  /// Begins after what the current stream of the device has got.
  DeviceCall(comm::CallRecord record, std::shared_ptr<GroupState> group);

  [[nodiscard]] const comm::CallRecord& record() const { return record_; }
  ~DeviceCall() override;

  /// Lets `stream` wait for the beginning, and keeps the tensors until somebody has waited for the
  /// end: from then on that one's stream comes behind the call, and whatever uses their memory next
  /// behind it.
  void begin_on(const c10::Stream& stream, std::vector<at::Tensor> tensors);
  /// Declares that all of it is on `stream`; once, before the watchdog gets it.
  void end_on(const c10::Stream& stream);

  void wait() override;
  void wait_host() override;
  [[nodiscard]] bool is_completed() const override;

  /// Whether the stream has come to it; for the watchdog.
  [[nodiscard]] bool has_begun() const { return ready_.query(); }
  /// Whether it ended well: an aborted call is no such.
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
  /// The group of the same ranks that the host communicates through.
  [[nodiscard]] comm::ProcessGroup& host() const { return *host_; }
  /// Held while a call of host() is made, since several threads make them.
  [[nodiscard]] std::mutex& host_mutex() { return host_mutex_; }
  [[nodiscard]] comm::CallRing& ring() { return ring_; }

  /// The first error; null: none.
  [[nodiscard]] std::exception_ptr error() const;
  void rethrow_error() const;
  /// Keeps the first error; the watchdog then ends what is under way.
  void fail(std::exception_ptr error) noexcept;
  /// The same with an error that names the call.
  void fail(const comm::CallRecord& call, const TransportFailure& failure);
  /// Error{comm} giving the reason.
  void fail(const std::string& reason) noexcept;

  /// Aborts this communicator with the group; at once where that has been.
  void add(std::shared_ptr<Communicator> communicator);
  /// Watches a call that is on the stream, after those watched there before.
  void watch(const c10::Stream& stream, std::shared_ptr<DeviceCall> call);
  /// Counts a call that is to be watched once its link is made; until was_posted().
  void will_post() { ++being_posted_; }
  void was_posted() { --being_posted_; }
  [[nodiscard]] bool has_pending() const;
  /// Notes the calls that have ended in the ring, from a thread on any device.
  void note_ends();
  /// Looks after the calls: notes beginnings and ends, finds what is overdue or has failed. The
  /// watchdog calls it again and again. Returns whether the group has failed and is still to end.
  [[nodiscard]] bool poll() noexcept;
  /// Ends a group that has failed, on the host and for its peers. Returns what is to be aborted.
  [[nodiscard]] std::vector<std::shared_ptr<Communicator>> end() noexcept;
  /// Lets go of the communicators, after end() where there was an error.
  void close() noexcept;

 private:
  using Calls = std::deque<std::shared_ptr<DeviceCall>>;

  void note_ends(Calls& calls);
  void follow(Calls& calls);
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
  std::atomic<std::int64_t> being_posted_{0};

  mutable std::mutex mutex_;  // of what follows
  std::vector<std::shared_ptr<Communicator>> communicators_;
  std::map<c10::StreamId, Calls> pending_;  // by stream
  std::map<const DeviceCall*, base::Clock::time_point> begun_;
  bool has_ended_ = false;
};

}  // namespace dtrain::cuda
