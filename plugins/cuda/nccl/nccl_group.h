// A process group whose tensors lie on GPUs.
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
#include "cuda/nccl/link.h"
#include "cuda/nccl/watchdog.h"
#include "dtrain/comm/process_group.h"

namespace dtrain::cuda {

/// Collective calls run on a stream of the group's, messages on the rank's: after what the caller's
/// stream has got, and beside what it gets then. A group of one has no stream.
///
/// Async: calls return when they are on their stream. A send or receive may still wait there for
///        its link to be made; Work::wait() then blocks for that long.
///
/// Throws: as comm::ProcessGroup. A call that has begun and does not end within the deadline is
///         aborted; one whose stream never comes to it is not overdue.
class NcclGroup final : public comm::ProcessGroup {
 public:
  /// communicator: null in a group of one and in one for messages alone. memory, from which arenas
  /// come: null in a group of one. messages: the same for all groups of a rank.
  NcclGroup(std::shared_ptr<GroupState> state, std::shared_ptr<Communicator> communicator,
            std::shared_ptr<RegisteredMemory> memory, std::shared_ptr<Watchdog> watchdog,
            std::shared_ptr<MessageLanes> messages);
  /// Aborts what is under way.
  ~NcclGroup() override;

  [[nodiscard]] std::int64_t rank() const override { return state_->identity().rank; }
  [[nodiscard]] std::int64_t size() const override {
    return static_cast<std::int64_t>(state_->identity().world_ranks.size());
  }
  [[nodiscard]] const std::string& name() const override { return state_->identity().name; }
  [[nodiscard]] comm::CallRing& calls() const override {
    state_->note_ends();
    return state_->ring();
  }

  [[nodiscard]] comm::Work post(comm::Operation operation) override;
  void abort(const std::string& reason) noexcept override { state_->fail(reason); }

 private:
  /// Puts a collective operation on the group's stream.
  void collect(comm::Operation& operation, const std::shared_ptr<DeviceCall>& call);
  [[nodiscard]] Link& link_to(std::int64_t peer, Link::Direction direction);
  /// Returns when every rank has come.
  void meet();

  const std::shared_ptr<GroupState> state_;
  const std::shared_ptr<Watchdog> watchdog_;
  const Collectives collectives_;
  const bool is_connected_;
  const std::shared_ptr<MessageLanes> messages_;
  std::optional<c10::Stream> stream_;  // none before the first collective call
  std::shared_ptr<DeviceCall> last_;   // of the collective calls
  std::map<std::pair<Link::Direction, std::int64_t>, std::shared_ptr<Link>> links_;  // by peer
};

}  // namespace dtrain::cuda
