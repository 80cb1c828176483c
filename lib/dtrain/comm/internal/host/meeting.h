// One member's part in a group that meets through a ControlBlock, and its view of the others' memory.
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

/// The memory of all ranks of a host as one of them sees it. Ranks are world ranks.
///
/// Threads: any.
class Neighbours {
 public:
  virtual ~Neighbours() = default;

  [[nodiscard]] virtual std::int64_t num_ranks() const = 0;
  /// Where `rank`'s memory begins in this process.
  [[nodiscard]] virtual std::uintptr_t base(std::int64_t rank) const = 0;
  /// Returns whether the others can reach these bytes of this rank.
  [[nodiscard]] virtual bool reachable(const std::byte* data, std::int64_t bytes) const = 0;
  /// Zeroed memory of this rank that the others can reach; at least one byte.
  [[nodiscard]] virtual std::shared_ptr<std::byte> allocate(std::int64_t bytes) = 0;
  /// Returns whether that rank's process has ended or let go of the job.
  [[nodiscard]] virtual bool is_gone(std::int64_t rank) const = 0;

  /// After a failure: others may still be at work on this memory, so it must not be used again.
  void keep(std::shared_ptr<void> memory) {
    const std::lock_guard lock(mutex_);
    kept_.push_back(std::move(memory));
  }

 private:
  std::mutex mutex_;
  std::vector<std::shared_ptr<void>> kept_;
};

/// This rank's place in a group.
struct Seat {
  std::shared_ptr<ControlBlock> block;
  std::int64_t rank = 0;                  ///< within the group
  std::vector<std::int64_t> world_ranks;  ///< of all members, in group order
};

/// Meets the other members at the gate and at the channels; ends every wait by its deadline, when a
/// peer that is waited for is gone, or when the group is closed.
///
/// A wait spins for a few microseconds where every member has a core, then sleeps.
///
/// Throws:  waits: TransportFailure.
/// Threads: gate: one; each channel: one at each end; close: any.
class Meeting {
 public:
  Meeting(Seat seat, std::shared_ptr<Neighbours> neighbours);
  /// Lets go of the group; the peers' waits for this rank fail soon.
  ~Meeting();
  Meeting(const Meeting&) = delete;
  Meeting& operator=(const Meeting&) = delete;

  [[nodiscard]] std::int64_t rank() const { return seat_.rank; }
  [[nodiscard]] std::int64_t size() const { return seat_.block->size; }
  [[nodiscard]] Neighbours& neighbours() const { return *neighbours_; }

  /// Where this rank lays out what the others may read after the next arrive().
  [[nodiscard]] Slot& own_slot();
  /// Says that this rank has come as often as it has, and returns when all have.
  void arrive(const base::Deadline& deadline);
  /// The same at the start of a collective call, whose offer lies in own_slot().
  ///
  /// Throws: Error{internal} if another member makes a different call.
  void arrive_with_call(const base::Deadline& deadline);
  /// Returns what a member laid out before the last arrive(); read it before the next one.
  [[nodiscard]] const Slot& slot_of(std::int64_t rank);
  /// One round of a small call: every member lays its payload out; then payloads() holds them.
  void exchange(const CollectiveCall& call, const std::byte* payload, std::int64_t bytes,
                const base::Deadline& deadline);
  /// By rank, from byte `offset` on; valid until the next call.
  [[nodiscard]] std::span<const std::byte* const> payloads(std::int64_t offset);

  /// The next piece of a message from this rank to `peer`. Waits until there is room for it, and
  /// returns its number.
  std::uint32_t wait_for_room(std::int64_t peer, const base::Deadline& deadline);
  /// Hands the piece of that number over.
  void post(std::int64_t peer, std::uint32_t number, const Piece& piece);
  /// Returns when `peer` has taken all that was posted.
  void wait_until_taken(std::int64_t peer, const base::Deadline& deadline);

  /// Waits for the next piece from `peer`.
  [[nodiscard]] Piece wait_for_piece(std::int64_t peer, const base::Deadline& deadline);
  /// Says that the piece was copied.
  void take(std::int64_t peer);

  /// A member's memory as seen here.
  [[nodiscard]] std::byte* at(std::int64_t rank, std::uint64_t location) const;
  /// Where the others find this memory of this rank.
  [[nodiscard]] std::uint64_t location_of(const std::byte* data) const;

  /// A member that the gate waits for at this moment; -1: none. Threads: any.
  [[nodiscard]] std::int64_t awaited() const noexcept { return awaited_; }

  void close(const std::string& reason) noexcept;
  [[nodiscard]] bool is_closed() const { return seat_.block->is_closed(); }

 private:
  /// Waits until ready(value of signal); missing(): the members that this depends on.
  template <typename Ready, typename Missing>
  void wait(Signal& signal, const base::Deadline& deadline, Ready ready, Missing missing);
  /// Waits until `peer` has brought its counter to `target`.
  void wait_for_count(Signal& counter, std::uint32_t target, std::int64_t peer,
                      const base::Deadline& deadline);
  /// How often a wait looks before it sleeps.
  [[nodiscard]] int spins() noexcept;
  [[nodiscard]] std::vector<std::int64_t> not_arrived() const;
  /// Those of these members that are gone, among as many as one look takes in.
  [[nodiscard]] std::vector<std::int64_t> gone_among(const std::vector<std::int64_t>& ranks) const;
  [[nodiscard]] TransportFailure failure_of_closing() const;

  Seat seat_;
  std::shared_ptr<Neighbours> neighbours_;
  std::atomic<int> spins_;  // negative: not known before all members are there
  std::uint32_t arrivals_ = 0;
  std::vector<const std::byte*> payloads_;
  std::atomic<std::int64_t> awaited_{-1};
  std::atomic<std::int64_t> culprit_{-1};  // the member whose death this rank noticed
  mutable std::atomic<std::uint64_t> looks_{0};
};

}  // namespace dtrain::comm
