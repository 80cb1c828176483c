// What a tensor-parallel block may ask for. Blocks know this and nothing of ranks.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace dtrain::model {

/// The tensor axis as seen by a block; this class is the axis of size 1, where every request is the
/// identity.
///
/// Collective: over the axis, each request in the same order on every rank.
class TensorAxis {
 public:
  virtual ~TensorAxis() = default;

  /// x replicated -> x for a split product; its gradient is summed over the axis.
  [[nodiscard]] virtual at::Tensor copy_to(const at::Tensor& x) { return x; }
  /// Partial results of a split product -> their sum; its gradient is passed through.
  [[nodiscard]] virtual at::Tensor reduce_from(const at::Tensor& partial) { return partial; }
  /// Partial results of one head whose neurons are split -> their sum over the ranks sharing the
  /// head.
  [[nodiscard]] virtual at::Tensor reduce_within_head(const at::Tensor& partial) { return partial; }

  [[nodiscard]] virtual std::int64_t index() const { return 0; }
  [[nodiscard]] virtual std::int64_t size() const { return 1; }
};

}  // namespace dtrain::model
