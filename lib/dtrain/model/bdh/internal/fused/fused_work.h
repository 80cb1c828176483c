// Helpers shared by the passes of a fused BDH layer (level): access to tiles, scratch memory per
// thread, and gradient accumulation in a fixed order.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "dtrain/base/error.h"
#include "dtrain/kernels/gemm.h"
#include "dtrain/kernels/row_types.h"
#include "dtrain/kernels/tasks.h"
#include "dtrain/model/bdh/internal/fused/fused_shape.h"
#include "dtrain/model/bdh/internal/fused/level_rows.h"
#include "dtrain/param/parameter_use.h"

namespace dtrain::model::bdh {

using kernels::for_type;
using kernels::kWideType;
using kernels::stored;

/// Returns the element-wise kernels for this CPU.
template <typename S>
[[nodiscard]] const auto& level_rows() {
  if constexpr (std::is_same_v<S, float>) {
    return kernels::choose(kFloatRowsBaseline, kFloatRowsAvx2, kFloatRowsAvx512);
  } else if constexpr (std::is_same_v<S, double>) {
    return kernels::choose(kDoubleRowsBaseline, kDoubleRowsAvx2, kDoubleRowsAvx512);
  } else {
    return kernels::choose(kBfloat16RowsBaseline, kBfloat16RowsAvx2, kBfloat16RowsAvx512);
  }
}

/// Calls of_row(i) for each row, in parallel.
template <typename OfRow>
void for_each_row(std::int64_t rows, const OfRow& of_row) {
  constexpr std::int64_t kRows = 32;
  kernels::run_tasks((rows + kRows - 1) / kRows, [&](std::int64_t task, std::int64_t) {
    const std::int64_t end = std::min(rows, (task + 1) * kRows);
    for (std::int64_t row = task * kRows; row < end; ++row) of_row(row);
  });
}

/// Accumulates a weight's gradient in dtype `wide`: directly in its target, or in a buffer if the
/// target has another dtype.
class GradientSum {
 public:
  GradientSum(param::GradientTarget place, at::ScalarType wide) : place_(std::move(place)) {
    if (!place_.view.defined()) return;
    is_direct_ = place_.view.scalar_type() == wide && place_.view.is_contiguous();
    sum_ = is_direct_ ? place_.view
                      : at::empty(place_.view.sizes(), place_.view.options().dtype(wide));
  }
  /// The accumulator: the weight's shape, of `wide`, contiguous; undefined if no gradient is
  /// needed.
  [[nodiscard]] const at::Tensor& sum() const { return sum_; }
  /// True if sum() has no value yet.
  [[nodiscard]] bool is_first() const { return !is_direct_ || place_.is_first; }
  /// Adds a separate buffer to the target. Call once, after the last addition.
  void finish() {
    if (!is_direct_ && sum_.defined()) place_.accumulate(sum_);
  }

 private:
  param::GradientTarget place_;
  at::Tensor sum_;
  bool is_direct_ = false;
};

/// Orders the additions of samples to each gradient, so that sums are bit-identical for any number
/// of threads.
///
/// Threads: any; one thread per sample of a gradient.
class SampleOrder {
 public:
  explicit SampleOrder(std::int64_t num_gradients)
      : added_(static_cast<std::size_t>(num_gradients)) {}

  /// Waits until all earlier samples have added to the gradient. REQUIRES: other threads have
  /// started those samples. Returns at once if a sample has failed, because the sum is then
  /// discarded.
  void wait(std::int64_t gradient, std::int64_t sample) const {
    constexpr auto kSpin = std::chrono::microseconds(1);
    const std::atomic<std::int64_t>& added = added_[static_cast<std::size_t>(gradient)];
    const auto begin = std::chrono::steady_clock::now();
    while (added.load(std::memory_order_acquire) < sample && !has_failed_.load()) {
      if (std::chrono::steady_clock::now() - begin > kSpin) std::this_thread::yield();
    }
  }
  /// Marks the sample's contribution as complete.
  void pass_on(std::int64_t gradient, std::int64_t sample) {
    added_[static_cast<std::size_t>(gradient)].store(sample + 1, std::memory_order_release);
  }
  /// Marks a sample as failed, which ends all waits.
  void fail() { has_failed_ = true; }

 private:
  std::vector<std::atomic<std::int64_t>> added_;  // completed samples per gradient
  std::atomic<bool> has_failed_ = false;
};

/// The computation of a level for one microbatch, on element type S (float, double or bfloat16)
/// with accumulation type W. Tensors are contiguous; neuron tensors are stored as tiles (T, chunk),
/// one per head, sample and chunk.
///
/// Threads: one caller; members use all threads of the rank. Results do not depend on the number of
///          threads.
template <typename S>
class FusedWork {
 public:
  using W = typename kernels::SumOf<S>::Type;
  using Rows = std::remove_cvref_t<decltype(level_rows<S>())>;
  using Input = kernels::Matrix<const S>;

  /// Scratch memory of one thread: `sums`, a tile of one span or of all positions; `first` and
  /// `second`, tiles of one span; `square`, a score matrix or a state; `rounded`, the state rounded
  /// to S for products.
  struct Worker {
    kernels::Gemm<S> product;
    kernels::Scratch<W> sums;
    kernels::Scratch<S> first;
    kernels::Scratch<S> second;
    kernels::Scratch<W> square;
    kernels::Scratch<S> rounded;
    std::vector<std::uint32_t> halves;
  };

  explicit FusedWork(const FusedShape& shape, const at::TensorOptions& options);
  /// Predicts the scratch memory of a rank's threads in bytes, for forward or backward.
  [[nodiscard]] static std::int64_t bytes(const FusedShape& shape, std::int64_t threads,
                                          bool is_backward);

  [[nodiscard]] const FusedShape& shape() const { return shape_; }
  [[nodiscard]] const Rows& rows() const { return rows_; }
  [[nodiscard]] Worker& worker(std::int64_t index) {
    return workers_[static_cast<std::size_t>(index)];
  }

  /// Allocates a tensor of W.
  [[nodiscard]] at::Tensor wide_empty(at::IntArrayRef sizes) const {
    return at::empty(sizes, options_.dtype(kWideType<S>));
  }

  /// Returns the `index`-th (T, D) matrix of a tensor.
  template <typename T>
  [[nodiscard]] kernels::Matrix<T> stream(const at::Tensor& tensor, std::int64_t index) const {
    return {tensor.mutable_data_ptr<T>() + index * shape_.length * shape_.width, shape_.length,
            shape_.width};
  }
  [[nodiscard]] Input input(const at::Tensor& tensor, std::int64_t index) const {
    return stream<S>(tensor, index).read_only();
  }
  /// Returns one tile of a neuron tensor.
  [[nodiscard]] kernels::Matrix<S> tile(const at::Tensor& neurons, std::int64_t head,
                                        std::int64_t sample, const NeuronRange& range) const {
    const std::int64_t first = (head * shape_.batch + sample) * shape_.neurons + range.begin;
    return {neurons.mutable_data_ptr<S>() + first * shape_.length, shape_.length, range.count};
  }
  /// Returns a span's rows of a tile in a worker's scratch memory.
  template <typename T>
  [[nodiscard]] kernels::Matrix<T> tile_in(const kernels::Scratch<T>& memory, const Span& span,
                                           const NeuronRange& range) const {
    return {memory.data(), span.count, range.count};
  }
  /// Returns the rows of a weight that belong to the neurons.
  [[nodiscard]] Input weight_rows(const at::Tensor& weight, std::int64_t head,
                                  const NeuronRange& range) const {
    const std::int64_t first = head * shape_.neurons + range.begin;
    return {weight.const_data_ptr<S>() + first * shape_.width, range.count, shape_.width};
  }

  /// Adds one span's gradient of the neurons' weight rows, neuronsᵀ values, to `gradient`.
  /// Overwrites it if this is the first addition of the backward pass (`adds` is false) and the
  /// target has no value yet.
  void add_gradient(Worker& worker, const kernels::Matrix<S>& neurons, const Input& values,
                    const GradientSum& gradient, std::int64_t head, const NeuronRange& range,
                    bool adds) const;

  /// Calls of_tile(Worker&, Tile) for every tile, in parallel.
  template <typename OfTile>
  void for_each_tile(const OfTile& of_tile) {
    kernels::run_tasks(
        shape_.head_groups() * shape_.batch, [&](std::int64_t task, std::int64_t index) {
          const std::int64_t head_group = task / shape_.batch;
          for_each_chunk(shape_, head_group, [&](const NeuronRange& range) {
            of_tile(worker(index), Tile{head_group, head_group / shape_.groups_per_head(),
                                        task % shape_.batch, range});
          });
        });
  }

  /// As for_each_tile, for tiles that add to weight gradients. of_tile(Worker&, Tile, wait) must
  /// call wait() before it adds; wait() returns when all earlier samples have been added. A task is
  /// one head group with all samples if the head groups divide evenly among threads, otherwise one
  /// sample of a head group.
  template <typename OfTile>
  void for_each_adding_tile(const OfTile& of_tile) {
    const std::int64_t head_groups = shape_.head_groups();
    const std::int64_t at_once = head_groups % kernels::num_workers() == 0 ? shape_.batch : 1;
    constexpr std::int64_t kMostChunks = FusedShape::kGroupNeurons / FusedShape::kMinChunk;
    SampleOrder order(head_groups * kMostChunks);
    std::atomic<std::int64_t> next = 0;  // ascending, so threads only wait for started samples
    kernels::run_tasks(head_groups * shape_.batch / at_once, [&](std::int64_t, std::int64_t index) {
      const std::int64_t task = next++;
      const std::int64_t head_group = task % head_groups;
      try {
        for (std::int64_t sample = task / head_groups * at_once, end = sample + at_once;
             sample < end; ++sample) {
          for_each_chunk(shape_, head_group, [&](const NeuronRange& range) {
            const std::int64_t chunk =
                range.begin % FusedShape::kGroupNeurons / shape_.chunk() + head_group * kMostChunks;
            of_tile(worker(index),
                    Tile{head_group, head_group / shape_.groups_per_head(), sample, range},
                    [&] { order.wait(chunk, sample); });
            order.pass_on(chunk, sample);
          });
        }
      } catch (...) {
        order.fail();
        throw;
      }
    });
  }

  /// out = relu(values weightᵀ) for one span of a tile.
  void encode(Worker& worker, const Input& values, const Input& weight,
              const kernels::Matrix<S>& out) const;
  /// As above for all neurons: values (B, T, D), or (nh, B, T, D) if heads have separate inputs;
  /// out (nh, B, T, N).
  void encode(const at::Tensor& values, const at::Tensor& weight, const at::Tensor& out);

  /// Sums (parts, ...) over parts, in order; overwrites the first part with the sum.
  [[nodiscard]] at::Tensor sum_parts(const at::Tensor& parts) const;
  /// Sums (nh * groups, ...) over each head's groups: returns (nh, ...).
  [[nodiscard]] at::Tensor sum_groups(const at::Tensor& parts) const;

  /// Layer norm of rows (..., D): overwrites `values`, writes `normalized`, and returns the
  /// reciprocal standard deviation of each row.
  [[nodiscard]] at::Tensor normalize(const at::Tensor& values, const at::Tensor& normalized) const;
  /// Replaces the gradient of the normalized rows, in type W, by the gradient of the input rows.
  void normalize_backward(at::Tensor& gradient, const at::Tensor& normalized,
                          const at::Tensor& rstd) const;

 private:
  FusedShape shape_;
  at::TensorOptions options_;
  const Rows& rows_;
  std::vector<Worker> workers_;
};

extern template class FusedWork<float>;
extern template class FusedWork<double>;
extern template class FusedWork<c10::BFloat16>;

}  // namespace dtrain::model::bdh
