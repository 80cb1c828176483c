// The interface of a backend for one group: blocking operations, without numbering, queues or error
// texts. QueuedGroup makes a ProcessGroup of it.
#pragma once

#include <cstdint>
#include <string>

#include "dtrain/base/clock.h"
#include "dtrain/comm/process_group.h"
#include "dtrain/comm/transport_failure.h"

namespace dtrain::comm {

/// Blocking operations of one rank of a group of at least two.
///
/// Throws:  TransportFailure, at the latest when the deadline has passed.
/// Threads: collective operations from one thread at a time; send and recv meanwhile from others,
///          one thread per peer and direction; close from any.
class Transport {
 public:
  virtual ~Transport() = default;

  /// Carries the operation out and returns the bytes that this rank sent.
  virtual std::int64_t run(const Operation& operation, const base::Deadline& deadline) = 0;

  /// A rank of the group that a collective operation under way waits for at this moment; -1: none,
  /// or not known. Threads: any.
  [[nodiscard]] virtual std::int64_t awaited() const noexcept { return -1; }

  /// Makes operations under way and later ones fail on this rank and, soon after, on its peers.
  /// Idempotent; does not wait for anyone.
  virtual void close(const std::string& reason) noexcept = 0;
};

}  // namespace dtrain::comm
