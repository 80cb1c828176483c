// Synchronises the ranks of one shared-memory group through its ControlBlock: barriers, slots for
// small payloads, mailboxes for messages, and detection of peers that have exited.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "dtrain/base/clock.h"
#include "dtrain/comm/internal/host/control_block.h"
#include "dtrain/comm/transport_failure.h"

namespace dtrain::comm {

/// Gives one rank access to the memory of all ranks of its host. Ranks are world ranks.
///
/// Threads: any.
class PeerMemory {
 public:
  virtual ~PeerMemory() = default;

  [[nodiscard]] virtual std::int64_t num_ranks() const = 0;
  /// Address in this process at which `rank`'s memory begins.
  [[nodiscard]] virtual std::uintptr_t base(std::int64_t rank) const = 0;
  /// Returns whether the other ranks can access these bytes of this rank.
  [[nodiscard]] virtual bool reachable(const std::byte* data, std::int64_t bytes) const = 0;
  /// Allocates zeroed memory of this rank that the others can access; at least one byte.
  [[nodiscard]] virtual std::shared_ptr<std::byte> allocate(std::int64_t bytes) = 0;
  /// Returns whether that rank's process has exited or left the job.
  [[nodiscard]] virtual bool has_exited(std::int64_t rank) const = 0;

  /// Keeps memory allocated after a failure, because peers may still access it.
  void retain(std::shared_ptr<void> memory) {
    const std::lock_guard lock(mutex_);
    retained_.push_back(std::move(memory));
  }

 private:
  std::mutex mutex_;
  std::vector<std::shared_ptr<void>> retained_;
};

/// A rank's membership in a shared-memory group.
struct GroupMembership {
  std::shared_ptr<ControlBlock> block;
  std::int64_t rank = 0;                  ///< within the group
  std::vector<std::int64_t> world_ranks;  ///< of all members, in group order
};

/// One rank's handle to a shared-memory group. Every wait ends at its deadline, when an awaited
/// peer has exited, or when the group is closed.
///
/// If every member has its own core, a wait spins for a few microseconds before it sleeps.
///
/// Throws:  every wait: TransportFailure.
/// Threads: barrier: one; each mailbox: one at each end; close: any.
class ShmContext {
 public:
  ShmContext(GroupMembership membership, std::shared_ptr<PeerMemory> peer_memory);
  /// Leaves the group; the peers' waits for this rank fail soon.
  ~ShmContext();
  ShmContext(const ShmContext&) = delete;
  ShmContext& operator=(const ShmContext&) = delete;

  [[nodiscard]] std::int64_t rank() const { return membership_.rank; }
  [[nodiscard]] std::int64_t size() const { return membership_.block->size; }
  [[nodiscard]] PeerMemory& peer_memory() const { return *peer_memory_; }

  /// This rank's slot. Fill it before arrive(); the other members may read it afterwards.
  [[nodiscard]] Slot& own_slot();
  /// Barrier: returns when every member has called it as often as this rank.
  void arrive(const base::Deadline& deadline);
  /// Barrier at the start of the collective call that own_slot() describes.
  ///
  /// Throws: Error{internal} if another member makes a different call.
  void arrive_with_call(const base::Deadline& deadline);
  /// The slot that a member filled before the last arrive(); valid until the next one.
  [[nodiscard]] const Slot& slot_of(std::int64_t rank);
  /// Exchanges small payloads: copies this rank's payload into its slot; afterwards payloads()
  /// returns those of all ranks.
  void exchange(const CollectiveCall& call, const std::byte* payload, std::int64_t bytes,
                const base::Deadline& deadline);
  /// The exchanged payloads by rank, from byte `offset` on; valid until the next call.
  [[nodiscard]] std::span<const std::byte* const> payloads(std::int64_t offset);

  /// Waits until the mailbox to `peer` has room for another chunk, and returns its number.
  std::uint32_t wait_for_free_chunk(std::int64_t peer, const base::Deadline& deadline);
  /// Publishes the chunk of that number to `peer`.
  void post(std::int64_t peer, std::uint32_t number, const Chunk& chunk);
  /// Returns when `peer` has consumed every posted chunk.
  void wait_until_consumed(std::int64_t peer, const base::Deadline& deadline);

  /// Waits for the next chunk from `peer`.
  [[nodiscard]] Chunk wait_for_chunk(std::int64_t peer, const base::Deadline& deadline);
  /// Signals to `peer` that its chunk was copied and may be overwritten.
  void consume(std::int64_t peer);

  /// Address in this process of a location in a member's memory.
  [[nodiscard]] std::byte* at(std::int64_t rank, std::uint64_t location) const;
  /// The location of this rank's memory, as the other members address it.
  [[nodiscard]] std::uint64_t location_of(const std::byte* data) const;

  /// A member that the barrier is waiting for; -1: none. Threads: any.
  [[nodiscard]] std::int64_t awaited() const noexcept { return awaited_; }

  void close(const std::string& reason) noexcept;
  [[nodiscard]] bool is_closed() const { return membership_.block->is_closed(); }

 private:
  /// Waits until ready(value of futex). missing(): the members still awaited.
  template <typename Ready, typename Missing>
  void wait(Futex& futex, const base::Deadline& deadline, Ready ready, Missing missing);
  /// Waits until `peer` has advanced its counter to `target`.
  void wait_for_count(Futex& counter, std::uint32_t target, std::int64_t peer,
                      const base::Deadline& deadline);
  /// Spin iterations of a wait before it sleeps.
  [[nodiscard]] int spins() noexcept;
  [[nodiscard]] std::vector<std::int64_t> not_arrived() const;
  /// Checks the next few of these members and returns those that have exited.
  [[nodiscard]] std::vector<std::int64_t> exited_among(
      const std::vector<std::int64_t>& ranks) const;
  [[nodiscard]] TransportFailure close_failure() const;

  GroupMembership membership_;
  std::shared_ptr<PeerMemory> peer_memory_;
  std::atomic<int> spins_;  // negative: unknown until all members have joined
  std::uint32_t arrivals_ = 0;
  std::vector<const std::byte*> payloads_;
  std::atomic<std::int64_t> awaited_{-1};
  std::atomic<std::int64_t> culprit_{-1};  // the member whose exit this rank noticed
  mutable std::atomic<std::uint64_t> liveness_round_{0};
};

}  // namespace dtrain::comm
