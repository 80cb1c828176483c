// The shared state of an NCCL group: its calls in flight, its communicators and its first error.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "cuda/nccl/communicator.h"
#include "cuda/nccl/device_call.h"
#include "cuda/nccl/group_error.h"
#include "dtrain/comm/call_ring.h"
#include "dtrain/comm/process_group.h"
#include "dtrain/comm/queued_group.h"

namespace dtrain::cuda {

/// The ranks of a group, its options, and this rank's device.
struct GroupConfig {
  comm::GroupIdentity identity;
  comm::GroupOptions options;
  c10::Device device;
};

/// The state that a group's calls, its connections and the watchdog share. After an error, it ends
/// the calls, the communicators and the host group of the same ranks together.
///
/// Threads: any.
class GroupState {
 public:
  GroupState(GroupConfig config, std::shared_ptr<comm::ProcessGroup> host)
      : config_(std::move(config)), host_(std::move(host)) {}

  [[nodiscard]] const GroupConfig& config() const { return config_; }
  [[nodiscard]] comm::CallRing& ring() { return ring_; }
  [[nodiscard]] GroupError& error() { return error_; }

  /// Starts an operation of the host group.
  [[nodiscard]] comm::Work post_on_host(comm::Operation operation);

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
  void check_communicators();

  const GroupConfig config_;
  const std::shared_ptr<comm::ProcessGroup> host_;
  std::mutex host_mutex_;  // held while posting a call of host_, which several threads do
  comm::CallRing ring_;
  GroupError error_{config_.identity, config_.options.timeout};
  std::atomic<std::int64_t> num_being_posted_{0};

  mutable std::mutex mutex_;  // guards the members below
  InFlightCalls calls_{ring_, error_, config_.options.timeout};
  std::vector<std::shared_ptr<Communicator>> communicators_;
  bool has_ended_ = false;
};

}  // namespace dtrain::cuda
