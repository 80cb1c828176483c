// A process group for GPU tensors, over NCCL.
#pragma once

#include <c10/core/Stream.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cuda/nccl/collectives.h"
#include "cuda/nccl/group_state.h"
#include "cuda/nccl/point_to_point.h"
#include "cuda/nccl/watchdog.h"
#include "dtrain/comm/process_group.h"

namespace dtrain::cuda {

/// Runs collectives on the group's own stream, and point-to-point messages on streams that all
/// groups of a rank share. A call is ordered after the work already on the caller's stream and
/// overlaps with later work. A single-rank group has no stream.
///
/// Async: calls return when they are enqueued. A send or receive may first have to connect to its
///        peer; Work::wait() then blocks for that long.
///
/// Throws: as comm::ProcessGroup. A call that has started but does not finish within the deadline is
///         aborted; a call still queued on its stream never times out.
class NcclGroup final : public comm::ProcessGroup {
 public:
  /// communicator: null in single-rank groups and in groups for messages only. memory: the allocator
  /// of arenas; null in single-rank groups. messages: shared by all groups of a rank.
  NcclGroup(std::shared_ptr<GroupState> state, std::shared_ptr<Communicator> communicator,
            std::shared_ptr<RegisteredMemory> memory, std::shared_ptr<Watchdog> watchdog,
            std::shared_ptr<MessageStreams> messages);
  /// Aborts calls in flight.
  ~NcclGroup() override;

  [[nodiscard]] std::int64_t rank() const override { return state_->config().identity.rank; }
  [[nodiscard]] std::int64_t size() const override {
    return static_cast<std::int64_t>(state_->config().identity.world_ranks.size());
  }
  [[nodiscard]] const std::string& name() const override { return state_->config().identity.name; }
  [[nodiscard]] comm::CallRing& calls() const override {
    state_->record_completions();
    return state_->ring();
  }

  [[nodiscard]] comm::Work post(comm::Operation operation) override;
  void abort(const std::string& reason) noexcept override { state_->error().set(reason); }

 private:
  /// Enqueues a collective operation on the group's stream.
  void enqueue_collective(comm::Operation& operation, const std::shared_ptr<DeviceCall>& call);
  [[nodiscard]] P2pConnection& connection_to(std::int64_t peer, P2pConnection::Direction direction);

  const std::shared_ptr<GroupState> state_;
  const std::shared_ptr<Watchdog> watchdog_;
  const Collectives collectives_;
  const bool is_connected_;
  const std::shared_ptr<MessageStreams> messages_;
  std::optional<c10::Stream> stream_;  // none before the first collective call
  std::shared_ptr<DeviceCall> last_;   // the last collective call
  std::map<std::pair<P2pConnection::Direction, std::int64_t>, std::shared_ptr<P2pConnection>>
      connections_;  // by peer
};

}  // namespace dtrain::cuda
