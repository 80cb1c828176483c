// A group of ranks that communicate, as the rest of dtrain sees it.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "dtrain/comm/call_ring.h"
#include "dtrain/comm/work.h"

namespace dtrain::comm {

enum class ReduceOp { sum, max };

/// In which order contributions are added.
enum class Reduction {
  ordered,  ///< by a fixed binary tree over the group's ranks: the bits depend on nothing but the
            ///< ranks' values
  fast,     ///< whatever the backend does quickest
};

/// Options that all groups of a job share.
struct GroupOptions {
  std::chrono::milliseconds timeout{
      600'000};  ///< the longest any wait may take before Error{timeout}
  Reduction reduction = Reduction::ordered;
  bool shares_devices = false;  ///< several ranks may compute on one device
};

/// The work of a group, as far as the memory of its transport follows from it.
///
/// Units: ranks, and bytes of one tensor.
struct GroupLoad {
  std::int64_t size = 1;     ///< of the group
  bool is_first = true;      ///< this rank is the group's first
  std::int64_t reduced = 0;  ///< the largest tensor that is reduced
  std::int64_t foreign = 0;  ///< the largest one of a collective that World::allocate has not given
  std::int64_t peers = 0;    ///< ranks that are sent such tensors
};

/// Ranks that communicate. All operations are numbered, timed and counted in the group's CallRing.
///
/// Shapes:     tensors are dense, contiguous and on the group's device; equal dtypes on every rank,
///             and equal sizes unless the operation takes counts.
/// Units:      counts are elements, one for each rank of the group, in the order of ranks.
///
/// Collective: everything but send, recv and abort: every rank of the group calls it, in the same
///             order.
///
/// Async:      operations return before completion; a tensor belongs to the group until
///             Work::wait() returns.
///
/// Throws:     from Work::wait() and barrier(): Error{timeout} naming the group, the call and what
///             was waited for; Error{comm} if a peer is gone or the group was aborted. After an
///             error the group is dead.
///
/// Threads:    one caller at a time; abort() from any thread.
class ProcessGroup {
 public:
  virtual ~ProcessGroup() = default;

  [[nodiscard]] virtual std::int64_t rank() const = 0;  ///< within the group
  [[nodiscard]] virtual std::int64_t size() const = 0;
  [[nodiscard]] virtual const std::string& name() const = 0;

  /// Replaces `tensor` by the sum (or maximum) over the ranks, in place.
  [[nodiscard]] virtual Work all_reduce(const at::Tensor& tensor, ReduceOp op = ReduceOp::sum) = 0;
  /// input (size * n) -> output (n): this rank's n elements of the sum over the ranks. The output
  /// may be this rank's part of the input; the rest of the input is left as it was.
  [[nodiscard]] virtual Work reduce_scatter(const at::Tensor& input, const at::Tensor& output) = 0;
  /// input (n) -> output (size * n), by rank. The input may be this rank's part of the output.
  [[nodiscard]] virtual Work all_gather(const at::Tensor& input, const at::Tensor& output) = 0;
  /// input (counts[rank]) -> output (sum of counts), by rank; counts are equal on every rank. The
  /// input may be this rank's part of the output.
  [[nodiscard]] virtual Work all_gather_v(const at::Tensor& input, const at::Tensor& output,
                                          std::span<const std::int64_t> counts) = 0;
  /// input (sum of send_counts): a part for each rank -> output (sum of recv_counts): a part from
  /// each rank, which has that many elements in that rank's send_counts. The two do not overlap.
  [[nodiscard]] virtual Work all_to_all(const at::Tensor& input,
                                        std::span<const std::int64_t> send_counts,
                                        const at::Tensor& output,
                                        std::span<const std::int64_t> recv_counts) = 0;
  [[nodiscard]] virtual Work broadcast(const at::Tensor& tensor, std::int64_t root) = 0;
  [[nodiscard]] virtual Work send(const at::Tensor& tensor, std::int64_t peer) = 0;
  [[nodiscard]] virtual Work recv(const at::Tensor& tensor, std::int64_t peer) = 0;
  virtual void barrier() = 0;

  /// Ends every pending and later operation of this rank's group with Error{comm} giving `reason`,
  /// and lets the peers notice. Never blocks.
  virtual void abort(const std::string& reason) noexcept = 0;

  [[nodiscard]] virtual CallRing& calls() const = 0;
  /// The world rank that a collective call under way waits for at this moment; -1: none, or not
  /// known. Threads: any.
  [[nodiscard]] virtual std::int64_t awaited() const noexcept { return -1; }
};

}  // namespace dtrain::comm
