// One step of both cuts: partial results are added over the ranks of a group.
#pragma once

#include <ATen/core/Tensor.h>

#include "dtrain/comm/process_group.h"

namespace dtrain::parallel {

/// The dtype that partial sums of `dtype` travel in. float16 ends at 65,504, which a partial sum
/// can pass though the whole sum does not, so it travels as float32; bfloat16 has float32's range.
[[nodiscard]] at::ScalarType travel_dtype(at::ScalarType dtype);

/// A sum under way.
class PendingSum {
 public:
  /// Starts the sum over the group of every rank's `partial`, in travel_dtype(result).
  ///
  /// Collective: every rank of `group`. Async: `partial` is copied; wait() gives the sum.
  PendingSum(comm::ProcessGroup& group, const at::Tensor& partial, at::ScalarType result);

  /// The sum, in the dtype that was asked for; the same bits on every rank.
  ///
  /// Throws: what comm::Work::wait throws.
  [[nodiscard]] at::Tensor wait();

 private:
  at::Tensor values_;
  at::ScalarType result_;
  comm::Work work_;
};

/// The ranks over which a product is split, and how finely.
struct ProductSplit {
  comm::ProcessGroup& group;
  bool shares_heads = false;  ///< parts are smaller than a head: see partial_product
};

/// The product a b of two batches of matrices that is one of several partial sums: where ranks
/// share a head, float16 factors give a float32 product, as parts of a sum over the head's neurons
/// may pass float16's range though the sum does not.
[[nodiscard]] at::Tensor partial_product(const at::Tensor& a, const at::Tensor& b,
                                         bool shares_heads);

}  // namespace dtrain::parallel
