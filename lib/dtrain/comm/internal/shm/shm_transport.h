// Collectives among ranks that see each other's memory.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "dtrain/comm/create_world.h"
#include "dtrain/comm/internal/host/host_groups.h"
#include "dtrain/comm/queued_group.h"

namespace dtrain::comm {

/// One rank's side of a group that meets through shared memory.
///
/// Tensors that the others can reach (all tensors, among threads; what World::allocate returned,
/// among processes) are read and written in place: a rank reduces its slice straight from all
/// ranks' tensors, in tree order, and writes the sum into all of them. Other tensors pass through a
/// staging area, chunk by chunk. Small ones travel within the control block, in one round.
///
/// Both reductions are the ordered one.
class ShmTransport final : public Transport {
 public:
  ShmTransport(Seat seat, std::shared_ptr<Neighbours> neighbours);
  ~ShmTransport() override;

  /// Returns the bytes of a rank's control block and staging areas.
  [[nodiscard]] static std::int64_t bytes(const GroupLoad& load);

  std::int64_t run(const Operation& operation, const base::Deadline& deadline) override;
  [[nodiscard]] std::int64_t awaited() const noexcept override { return meeting_.awaited(); }
  void close(const std::string& reason) noexcept override { meeting_.close(reason); }

 private:
  /// The members' tensors of the call under way.
  struct Sources {
    std::vector<std::byte*> data;  ///< by rank: the tensor, or the staging area
    std::vector<bool> staged;      ///< by rank
    bool any_staged = false;

    /// Address of byte `offset` of rank's tensor; staging areas hold its part from `staged_from`
    /// on.
    [[nodiscard]] std::byte* at(std::int64_t rank, std::int64_t offset,
                                std::int64_t staged_from) const;
  };

  /// A call whose tensors are too large for the control block.
  struct LargeCall {
    CollectiveCall call;
    const at::Tensor& tensor;       ///< what the other ranks read, and perhaps write
    std::int64_t total = 0;         ///< to be worked through, in units of the caller's choice
    std::int64_t staged_count = 0;  ///< of these, as many as a staging area holds
    bool is_read = true;            ///< whether the others touch `tensor` at all
  };

  std::int64_t execute(const AllReduce& call, const base::Deadline& deadline);
  std::int64_t execute(const ReduceScatter& call, const base::Deadline& deadline);
  std::int64_t execute(const AllGather& call, const base::Deadline& deadline);
  std::int64_t execute(const AllToAll& call, const base::Deadline& deadline);
  std::int64_t execute(const Broadcast& call, const base::Deadline& deadline);
  std::int64_t execute(const Send& call, const base::Deadline& deadline);
  std::int64_t execute(const Recv& call, const base::Deadline& deadline);
  std::int64_t execute(const Barrier& call, const base::Deadline& deadline);

  /// Works through the call: at once, or chunk by chunk if any rank's tensor has to be staged.
  /// stage(first, count) fills this rank's staging area; work(first, count) runs while everyone's
  /// chunk is laid out in sources_; fetch(first, count) takes the result from the staging area.
  template <typename Stage, typename Work, typename Fetch>
  void work_through(const LargeCall& large, const base::Deadline& deadline, Stage stage, Work work,
                    Fetch fetch);
  /// Lays out where this rank's tensor is and finds where everyone's is, in sources_.
  void lay_out(const LargeCall& large, bool staged, const base::Deadline& deadline);
  [[nodiscard]] std::byte* staging();

  /// Sums elements of a chunk and writes them into everyone's tensor.
  void reduce_and_spread(std::int64_t chunk_begin, std::int64_t begin, std::int64_t end,
                         const CollectiveCall& call);

  Meeting meeting_;
  // Of the collective call under way; kept, so that calls allocate nothing.
  Sources sources_;
  std::vector<const std::byte*> inputs_;
  std::shared_ptr<std::byte> staging_;                    // staging_bytes; made when first needed
  std::vector<std::shared_ptr<std::byte>> lane_staging_;  // by peer, used by the lane to it
};

/// The transport of a group of several ranks of one host, whose keys in the store begin with `key`.
///
/// Collective: the group.
[[nodiscard]] std::unique_ptr<Transport> connect_shm(HostGroups& groups, const std::string& key,
                                                     const GroupIdentity& identity);

/// World::allocate of ranks that have mapped each other's memory.
[[nodiscard]] at::Tensor allocate_shm(Neighbours& neighbours, std::int64_t bytes);

/// group_memory of a group of one host.
[[nodiscard]] std::int64_t shm_group_memory(const PlannedGroup& group);

}  // namespace dtrain::comm
