// The barrier of a shared-memory group, and the slots whose contents the members exchange at it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "dtrain/base/clock.h"
#include "dtrain/comm/internal/host/control_block.h"
#include "dtrain/comm/internal/host/shm_context.h"

namespace dtrain::comm {

/// One rank's handle to its group's barrier. Each member has a slot, in which it publishes a buffer
/// or a small payload when it arrives.
///
/// Throws:  members that take a deadline: TransportFailure.
/// Threads: one, except awaited().
class ShmBarrier {
 public:
  /// Only one per context: it counts this rank's arrivals. `context` must outlive this.
  explicit ShmBarrier(ShmContext& context) : context_(context) {}

  /// This rank's slot. Fill it before arrive(); the other members may read it afterwards.
  [[nodiscard]] Slot& own_slot();
  /// Returns when every member has called it as often as this rank.
  void arrive(const base::Deadline& deadline);
  /// Arrives at the start of the collective call that own_slot() describes.
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

  /// A member that arrive() is waiting for; -1: none. Threads: any.
  [[nodiscard]] std::int64_t awaited() const noexcept { return awaited_; }

 private:
  [[nodiscard]] std::vector<std::int64_t> not_arrived() const;

  ShmContext& context_;
  std::uint32_t arrivals_ = 0;
  std::vector<const std::byte*> payloads_;
  std::atomic<std::int64_t> awaited_{-1};
};

}  // namespace dtrain::comm
