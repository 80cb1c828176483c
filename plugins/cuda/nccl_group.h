// A process group whose tensors lie on GPUs.
#pragma once

#include <c10/core/Stream.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cuda/collectives.h"
#include "cuda/group_state.h"
#include "cuda/link.h"
#include "cuda/watchdog.h"
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

  [[nodiscard]] comm::Work all_reduce(const at::Tensor& tensor, comm::ReduceOp op) override;
  [[nodiscard]] comm::Work reduce_scatter(const at::Tensor& input,
                                          const at::Tensor& output) override;
  [[nodiscard]] comm::Work all_gather(const at::Tensor& input, const at::Tensor& output) override;
  [[nodiscard]] comm::Work all_gather_v(const at::Tensor& input, const at::Tensor& output,
                                        std::span<const std::int64_t> counts) override;
  [[nodiscard]] comm::Work all_to_all(const at::Tensor& input,
                                      std::span<const std::int64_t> send_counts,
                                      const at::Tensor& output,
                                      std::span<const std::int64_t> recv_counts) override;
  [[nodiscard]] comm::Work broadcast(const at::Tensor& tensor, std::int64_t root) override;
  [[nodiscard]] comm::Work send(const at::Tensor& tensor, std::int64_t peer) override;
  [[nodiscard]] comm::Work recv(const at::Tensor& tensor, std::int64_t peer) override;
  void barrier() override;
  void abort(const std::string& reason) noexcept override { state_->fail(reason); }

 private:
  using Operation = std::function<void(const base::Deadline&)>;

  comm::Work post(comm::CallRecord call, std::initializer_list<at::Tensor> tensors,
                  const Operation& operation);
  comm::Work post(Link::Direction direction, comm::CallRecord call, const at::Tensor& tensor,
                  std::int64_t peer);
  /// A call of a group of one, which is over.
  comm::Work alone(comm::CallRecord call);
  std::shared_ptr<DeviceCall> numbered(comm::CallRecord& call);
  [[nodiscard]] std::int64_t world_rank(std::int64_t rank) const;
  [[nodiscard]] bool is_fast(comm::ReduceOp op) const;

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
