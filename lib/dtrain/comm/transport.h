// The interface of a backend for one group: blocking operations, without numbering, queues or error
// texts. QueuedGroup makes a ProcessGroup of it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

#include "dtrain/base/deadline.h"
#include "dtrain/comm/parted_tensor.h"
#include "dtrain/comm/process_group.h"
#include "dtrain/comm/transport_failure.h"

namespace dtrain::comm {

/// Blocking operations of one rank of a group of at least two. Each returns the bytes that this
/// rank sent.
///
/// Throws:  TransportFailure, at the latest when the deadline has passed.
/// Threads: collective operations from one thread at a time; send and recv meanwhile from others,
///          one thread per peer and direction; close from any.
class Transport {
 public:
  virtual ~Transport() = default;

  virtual std::int64_t all_reduce(const at::Tensor& tensor, ReduceOp op,
                                  const base::Deadline& deadline) = 0;
  virtual std::int64_t reduce_scatter(const at::Tensor& input, const at::Tensor& output,
                                      const base::Deadline& deadline) = 0;
  /// input: this rank's part, which may lie in `output`.
  virtual std::int64_t all_gather(const at::Tensor& input, const PartedTensor& output,
                                  const base::Deadline& deadline) = 0;
  /// input: a part for each rank; output: a part from each rank.
  virtual std::int64_t all_to_all(const PartedTensor& input, const PartedTensor& output,
                                  const base::Deadline& deadline) = 0;
  virtual std::int64_t broadcast(const at::Tensor& tensor, std::int64_t root,
                                 const base::Deadline& deadline) = 0;
  virtual std::int64_t send(const at::Tensor& tensor, std::int64_t peer,
                            const base::Deadline& deadline) = 0;
  virtual std::int64_t recv(const at::Tensor& tensor, std::int64_t peer,
                            const base::Deadline& deadline) = 0;
  virtual std::int64_t barrier(const base::Deadline& deadline) = 0;

  /// A rank of the group that a collective operation under way waits for at this moment; -1: none,
  /// or not known. Threads: any.
  [[nodiscard]] virtual std::int64_t awaited() const noexcept { return -1; }

  /// Makes operations under way and later ones fail on this rank and, soon after, on its peers.
  /// Idempotent; does not wait for anyone.
  virtual void close(const std::string& reason) noexcept = 0;
};

}  // namespace dtrain::comm
