// Messages between two members of a shared-memory group.
#pragma once

#include <cstdint>

#include "dtrain/base/clock.h"
#include "dtrain/comm/internal/host/control_block.h"
#include "dtrain/comm/internal/host/shm_context.h"

namespace dtrain::comm {

/// One rank's ends of the mailboxes between it and the other members.
///
/// Throws:  members that take a deadline: TransportFailure.
/// Threads: each mailbox: one at each end.
class ShmMailboxes {
 public:
  /// `context` must outlive this.
  explicit ShmMailboxes(ShmContext& context) : context_(context) {}

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

 private:
  [[nodiscard]] Mailbox& mailbox_to(std::int64_t peer) const;
  [[nodiscard]] Mailbox& mailbox_from(std::int64_t peer) const;
  /// Waits until `peer` has advanced its counter to `target`.
  void wait_for_count(Futex& counter, std::uint32_t target, std::int64_t peer,
                      const base::Deadline& deadline);

  ShmContext& context_;
};

}  // namespace dtrain::comm
