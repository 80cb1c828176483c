// One rank's handle to a shared-memory group: addresses in the members' memory, and waits that
// detect exited peers.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
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

/// One rank's handle to a shared-memory group: its control block, the members' memory, and waits
/// for their counters. A wait ends at its deadline, when an awaited peer has exited, or when the
/// group is closed.
///
/// If every member has its own core, a wait spins for a few microseconds before it sleeps.
///
/// Threads: any.
class ShmContext {
 public:
  ShmContext(GroupMembership membership, std::shared_ptr<PeerMemory> peer_memory);
  /// Leaves the group; the peers' waits for this rank fail soon.
  ~ShmContext();
  ShmContext(const ShmContext&) = delete;
  ShmContext& operator=(const ShmContext&) = delete;

  [[nodiscard]] std::int64_t rank() const { return membership_.rank; }
  [[nodiscard]] std::int64_t size() const { return membership_.block->size; }
  [[nodiscard]] ControlBlock& control_block() const { return *membership_.block; }
  [[nodiscard]] PeerMemory& peer_memory() const { return *peer_memory_; }

  /// Address in this process of a location in a member's memory.
  [[nodiscard]] std::byte* at(std::int64_t rank, std::uint64_t location) const;
  /// The location of this rank's memory, as the other members address it.
  [[nodiscard]] std::uint64_t location_of(const std::byte* data) const;

  /// Waits until `counter`, which other members advance, has reached `target`. missing(): the
  /// members still awaited.
  ///
  /// Throws: TransportFailure.
  void wait(Futex& counter, std::uint32_t target, const base::Deadline& deadline,
            const std::function<std::vector<std::int64_t>()>& missing);

  void close(const std::string& reason) noexcept;
  [[nodiscard]] bool is_closed() const { return membership_.block->is_closed(); }

 private:
  /// Spin iterations of a wait before it sleeps.
  [[nodiscard]] int spins() noexcept;
  /// Checks the next few of these members and returns those that have exited.
  [[nodiscard]] std::vector<std::int64_t> exited_among(const std::vector<std::int64_t>& ranks);
  [[nodiscard]] TransportFailure close_failure() const;

  GroupMembership membership_;
  std::shared_ptr<PeerMemory> peer_memory_;
  std::atomic<int> spins_;                 // negative: unknown until all members have joined
  std::atomic<std::int64_t> culprit_{-1};  // the member whose exit this rank noticed
  std::atomic<std::uint64_t> liveness_round_{0};
};

}  // namespace dtrain::comm
