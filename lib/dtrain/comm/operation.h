// Represents the operations of a process group as structs, which backends execute.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <variant>

#include "dtrain/comm/call_ring.h"

namespace dtrain::comm {

/// Returns the address of a tensor's data.
[[nodiscard]] inline std::byte* bytes_of(const at::Tensor& tensor) {
  return static_cast<std::byte*>(tensor.data_ptr());
}

[[nodiscard]] inline std::int64_t size_in_bytes(const at::Tensor& tensor) {
  return static_cast<std::int64_t>(tensor.nbytes());
}

/// Elements by rank; groups of up to 16 ranks need no heap allocation.
using PartCounts = c10::SmallVector<std::int64_t, 17>;

/// A contiguous tensor cut into one part per rank of a group, in the order of ranks.
struct PartedTensor {
  /// counts: elements of each rank's part.
  ///
  /// Throws: Error{internal} unless they add up to the tensor's.
  PartedTensor(at::Tensor whole, std::span<const std::int64_t> counts);

  [[nodiscard]] std::int64_t ranks() const { return std::ssize(begins) - 1; }
  [[nodiscard]] std::int64_t count(std::int64_t rank) const {
    return begins[static_cast<std::size_t>(rank) + 1] - begins[static_cast<std::size_t>(rank)];
  }
  [[nodiscard]] std::span<std::byte> part(std::int64_t rank) const {
    const auto size = static_cast<std::int64_t>(tensor.element_size());
    return {bytes_of(tensor) + begins[static_cast<std::size_t>(rank)] * size,
            static_cast<std::size_t>(count(rank) * size)};
  }

  at::Tensor tensor;
  PartCounts begins{0};  ///< start of each part, and end of the last; elements
};

enum class ReduceOp { sum, max };

/// Replaces `tensor` by the sum (or maximum) over the ranks, in place.
struct AllReduce {
  at::Tensor tensor;
  ReduceOp op = ReduceOp::sum;
};

/// input (size * n) -> output (n): this rank's n elements of the sum over the ranks. The output may
/// be this rank's part of the input; the rest of the input is unchanged.
struct ReduceScatter {
  at::Tensor input;
  at::Tensor output;
};

/// input: this rank's part, which may alias the output -> output: every rank's part. All ranks pass
/// the same counts.
struct AllGather {
  at::Tensor input;
  PartedTensor output;
  bool takes_counts = false;  ///< called as all_gather_v
};

/// input: a part for each rank -> output: a part from each rank; the sender's and the receiver's
/// counts must match. Input and output do not overlap.
struct AllToAll {
  PartedTensor input;
  PartedTensor output;
};

/// Replaces `tensor` by that of `root`.
struct Broadcast {
  at::Tensor tensor;
  std::int64_t root = 0;
};

struct Send {
  at::Tensor tensor;
  std::int64_t peer = 0;
};

struct Recv {
  at::Tensor tensor;
  std::int64_t peer = 0;
};

/// Completes when every rank has called it.
struct Barrier {};

/// Shapes: tensors are dense, contiguous and on the group's device; equal dtypes on every rank, and
///         equal sizes unless the operation takes counts.
/// Units:  counts are elements, one for each rank of the group, in the order of ranks; `root` and
///         `peer` are ranks of the group.
using Operation =
    std::variant<Barrier, AllReduce, ReduceScatter, AllGather, AllToAll, Broadcast, Send, Recv>;

/// The tensors that an operation reads and writes; null if none. An in-place tensor counts as
/// written.
struct OperationTensors {
  at::Tensor* read = nullptr;
  at::Tensor* written = nullptr;
};
[[nodiscard]] OperationTensors tensors_of(Operation& operation);

/// The caller's rank, group size and device.
struct OperationPlace {
  std::int64_t rank = 0;  ///< within the group
  std::int64_t size = 1;  ///< of the group
  c10::Device device = c10::kCPU;
};

/// Throws: Error{internal} unless the operation's tensors and counts satisfy the rules above.
void check_operation(Operation& operation, const OperationPlace& place);

/// Creates the CallRing record of an operation, without a number. world_ranks: the group's members.
[[nodiscard]] CallRecord record_of(const Operation& operation,
                                   std::span<const std::int64_t> world_ranks);

/// Executes the operation in a single-rank group, on the device's current stream.
void run_single_rank(Operation& operation);

}  // namespace dtrain::comm
