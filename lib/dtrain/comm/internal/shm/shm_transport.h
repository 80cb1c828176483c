// Collectives over shared memory.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "dtrain/comm/create_world.h"
#include "dtrain/comm/internal/host/host_groups.h"
#include "dtrain/comm/internal/host/shm_barrier.h"
#include "dtrain/comm/internal/host/shm_context.h"
#include "dtrain/comm/internal/host/shm_mailboxes.h"
#include "dtrain/comm/queued_group.h"

namespace dtrain::comm {

/// Transport of a shared-memory group.
///
/// Tensors in shared memory (among threads all tensors, among processes those from World::allocate)
/// are read and written in place: a rank reduces its slice directly from all ranks' tensors, in
/// tree order, and writes the sum into all of them. Other tensors are copied through a staging
/// area, chunk by chunk. Small ones are exchanged within the control block, in one round.
///
/// Reduction::fast is the same as Reduction::ordered.
class ShmTransport final : public Transport {
 public:
  ShmTransport(GroupMembership membership, std::shared_ptr<PeerMemory> peer_memory);
  ~ShmTransport() override;

  /// Bytes of a rank's control block and staging areas.
  [[nodiscard]] static std::int64_t bytes(const GroupLoad& load);

  std::int64_t run(const Operation& operation, const base::Deadline& deadline) override;
  [[nodiscard]] std::int64_t awaited() const noexcept override { return barrier_.awaited(); }
  void close(const std::string& reason) noexcept override { shm_.close(reason); }

 private:
  /// The members' tensors of the call under way.
  struct Sources {
    std::vector<std::byte*> data;  ///< by rank: the tensor, or the staging area
    std::vector<bool> staged;      ///< by rank
    bool any_staged = false;

    /// Address of byte `offset` of a rank's tensor. A staging area holds the tensor from byte
    /// `staged_from` on.
    [[nodiscard]] std::byte* at(std::int64_t rank, std::int64_t offset,
                                std::int64_t staged_from) const;
  };

  /// A collective call whose tensors are too large for the control block.
  struct LargeCall {
    CollectiveCall call;
    const at::Tensor& tensor;       ///< read, and possibly written, by the other ranks
    std::int64_t total = 0;         ///< work items, in units of the caller's choice
    std::int64_t staged_count = 0;  ///< work items that a staging area holds
    bool is_read = true;            ///< whether the other ranks access `tensor`
  };

  std::int64_t execute(const AllReduce& call, const base::Deadline& deadline);
  std::int64_t execute(const ReduceScatter& call, const base::Deadline& deadline);
  std::int64_t execute(const AllGather& call, const base::Deadline& deadline);
  std::int64_t execute(const AllToAll& call, const base::Deadline& deadline);
  std::int64_t execute(const Broadcast& call, const base::Deadline& deadline);
  std::int64_t execute(const Send& call, const base::Deadline& deadline);
  std::int64_t execute(const Recv& call, const base::Deadline& deadline);
  std::int64_t execute(const Barrier& call, const base::Deadline& deadline);

  /// Runs a large call: at once, or chunk by chunk if any rank's tensor must be staged.
  /// stage(first, count) fills this rank's staging area; work(first, count) runs while sources_
  /// refers to every rank's chunk; fetch(first, count) copies the result out of the staging area.
  template <typename Stage, typename Work, typename Fetch>
  void process_chunks(const LargeCall& large, const base::Deadline& deadline, Stage stage,
                      Work work, Fetch fetch);
  /// Publishes this rank's buffer, and collects every rank's in sources_.
  void publish(const LargeCall& large, bool staged, const base::Deadline& deadline);
  [[nodiscard]] std::byte* staging();

  /// Sums elements of a chunk and writes the sums into every rank's tensor.
  void reduce_and_spread(std::int64_t chunk_begin, std::int64_t begin, std::int64_t end,
                         const CollectiveCall& call);

  ShmContext shm_;
  ShmBarrier barrier_;
  ShmMailboxes mailboxes_;
  // Reused by every collective call, so that calls allocate nothing.
  Sources sources_;
  std::vector<const std::byte*> inputs_;
  std::shared_ptr<std::byte> staging_;                    // staging_bytes; allocated at first use
  std::vector<std::shared_ptr<std::byte>> peer_staging_;  // by peer, for sends to it
};

/// Connects a group of several ranks on one host. key: prefix of the group's keys in the store.
///
/// Collective: the group.
[[nodiscard]] std::unique_ptr<Transport> connect_shm(HostGroups& groups, const std::string& key,
                                                     const GroupIdentity& identity);

/// Implements World::allocate for ranks that have mapped each other's memory.
[[nodiscard]] at::Tensor allocate_shm(PeerMemory& peer_memory, std::int64_t bytes);

/// group_memory() for a group within one host.
[[nodiscard]] std::int64_t shm_group_memory(const PlannedGroup& group);

}  // namespace dtrain::comm
