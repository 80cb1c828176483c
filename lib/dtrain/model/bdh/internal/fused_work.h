// What the passes of a fused level share: how tensors are cut, and what threads work in.
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
#include "dtrain/kernels/tasks.h"
#include "dtrain/model/bdh/internal/fused_shape.h"
#include "dtrain/model/bdh/internal/level_rows.h"
#include "dtrain/param/parameter_use.h"

namespace dtrain::model::bdh {

/// What numbers S are summed in.
template <typename S>
inline constexpr at::ScalarType kWideType =
    c10::CppTypeToScalarType<typename kernels::SumOf<S>::Type>::value;

/// Returns pass(S{}) for a type that fused blocks compute in.
template <typename Pass>
[[nodiscard]] auto for_type(at::ScalarType type, const Pass& pass) {
  switch (type) {
    case at::kFloat:
      return pass(float{});
    case at::kDouble:
      return pass(double{});
    case at::kBFloat16:
      return pass(c10::BFloat16{});
    default:
      base::fail(base::ErrorKind::internal, "no fused kernels for {}", at::toString(type));
  }
}

/// The element-wise code for this CPU.
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

/// Numbers as LevelRows takes them.
inline float* stored(float* data) { return data; }
inline double* stored(double* data) { return data; }
inline Bfloat16Bits* stored(c10::BFloat16* data) { return reinterpret_cast<Bfloat16Bits*>(data); }

/// Calls of_row(i) for each row, on all threads.
template <typename OfRow>
void for_each_row(std::int64_t rows, const OfRow& of_row) {
  constexpr std::int64_t kRows = 32;
  kernels::run_tasks((rows + kRows - 1) / kRows, [&](std::int64_t task, std::int64_t) {
    const std::int64_t end = std::min(rows, (task + 1) * kRows);
    for (std::int64_t row = task * kRows; row < end; ++row) of_row(row);
  });
}

/// A weight's gradient, which is summed in its place, or beside it where that is of another
/// type than `wide`.
class GradientSum {
 public:
  GradientSum(param::GradientTarget place, at::ScalarType wide) : place_(std::move(place)) {
    if (!place_.view.defined()) return;
    is_direct_ = place_.view.scalar_type() == wide && place_.view.is_contiguous();
    sum_ = is_direct_ ? place_.view
                      : at::empty(place_.view.sizes(), place_.view.options().dtype(wide));
  }
  /// The weight's shape, of `wide`, contiguous; undefined: none is wanted.
  [[nodiscard]] const at::Tensor& sum() const { return sum_; }
  /// True if sum() has no value yet.
  [[nodiscard]] bool is_first() const { return !is_direct_ || place_.is_first; }
  /// Brings the sum to its place; once, when all is added.
  void finish() {
    if (!is_direct_ && sum_.defined()) place_.take(sum_);
  }

 private:
  param::GradientTarget place_;
  at::Tensor sum_;
  bool is_direct_ = false;
};

/// Several gradients, to each of which samples add one after the other, so that their sums have the
/// same bits on any number of threads.
///
/// Threads: any; one for each sample of a gradient.
class SampleOrder {
 public:
  explicit SampleOrder(std::int64_t num_gradients)
      : added_(static_cast<std::size_t>(num_gradients)) {}

  /// Waits until all samples before this one have added to the gradient. REQUIRES: threads compute
  /// them. Returns at once when one of them has failed: nobody will read the sum.
  void wait(std::int64_t gradient, std::int64_t sample) const {
    constexpr auto kSpin = std::chrono::microseconds(1);
    const std::atomic<std::int64_t>& added = added_[static_cast<std::size_t>(gradient)];
    const auto begin = std::chrono::steady_clock::now();
    while (added.load(std::memory_order_acquire) < sample && !has_failed_.load()) {
      if (std::chrono::steady_clock::now() - begin > kSpin) std::this_thread::yield();
    }
  }
  /// The sample has added all it has.
  void pass_on(std::int64_t gradient, std::int64_t sample) {
    added_[static_cast<std::size_t>(gradient)].store(sample + 1, std::memory_order_release);
  }
  /// A sample will not add.
  void fail() { has_failed_ = true; }

 private:
  std::vector<std::atomic<std::int64_t>> added_;  // samples of each gradient
  std::atomic<bool> has_failed_ = false;
};

/// One microbatch's work of a level, in numbers S (float, double or bfloat16) that are summed as W.
/// Tensors are contiguous; those of neurons lie in tiles, one for each head, sample and chunk:
/// (T, chunk).
///
/// Threads: one caller; its members use the threads of the rank. Results have the same bits on any
/// number of them.
template <typename S>
class FusedWork {
 public:
  using W = typename kernels::SumOf<S>::Type;
  using Rows = std::remove_cvref_t<decltype(level_rows<S>())>;
  using Input = kernels::Matrix<const S>;

  /// What one thread works in: a tile of sums, of a span or of all positions; two tiles of a
  /// span's numbers; a square of positions or a state, and that state rounded for products.
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
  /// What the threads of a rank work in, forward or backward.
  [[nodiscard]] static std::int64_t bytes(const FusedShape& shape, std::int64_t threads,
                                          bool is_backward);

  [[nodiscard]] const FusedShape& shape() const { return shape_; }
  [[nodiscard]] const Rows& rows() const { return rows_; }
  [[nodiscard]] Worker& worker(std::int64_t index) {
    return workers_[static_cast<std::size_t>(index)];
  }

  /// A tensor of W.
  [[nodiscard]] at::Tensor wide_empty(at::IntArrayRef sizes) const {
    return at::empty(sizes, options_.dtype(kWideType<S>));
  }

  /// Matrix `index` of (T, D) that a tensor holds one after the other.
  template <typename T>
  [[nodiscard]] kernels::Matrix<T> stream(const at::Tensor& tensor, std::int64_t index) const {
    return {tensor.mutable_data_ptr<T>() + index * shape_.length * shape_.width, shape_.length,
            shape_.width};
  }
  [[nodiscard]] Input input(const at::Tensor& tensor, std::int64_t index) const {
    return stream<S>(tensor, index).read_only();
  }
  /// The tile of a tensor of neurons, of a head and sample.
  [[nodiscard]] kernels::Matrix<S> tile(const at::Tensor& neurons, std::int64_t head,
                                        std::int64_t sample, const NeuronRange& range) const {
    const std::int64_t first = (head * shape_.batch + sample) * shape_.neurons + range.begin;
    return {neurons.mutable_data_ptr<S>() + first * shape_.length, shape_.length, range.count};
  }
  /// A span's part of a tile, in memory of a worker's.
  template <typename T>
  [[nodiscard]] kernels::Matrix<T> tile_in(const kernels::Scratch<T>& memory, const Span& span,
                                           const NeuronRange& range) const {
    return {memory.data(), span.count, range.count};
  }
  /// The neurons' rows of a weight.
  [[nodiscard]] Input weight_rows(const at::Tensor& weight, std::int64_t head,
                                  const NeuronRange& range) const {
    const std::int64_t first = head * shape_.neurons + range.begin;
    return {weight.const_data_ptr<S>() + first * shape_.width, range.count, shape_.width};
  }

  /// Adds the gradient of the neurons' rows of a weight by one span: neuronsᵀ values; writes it
  /// where it is the first of the backward pass (`adds` false) and of its place.
  void add_gradient(Worker& worker, const kernels::Matrix<S>& neurons, const Input& values,
                    const GradientSum& gradient, std::int64_t head, const NeuronRange& range,
                    bool adds) const;

  /// Calls of_tile(Worker&, TilePlace) for every tile, on all threads.
  template <typename OfTile>
  void for_each_tile(const OfTile& of_tile) {
    kernels::run_tasks(shape_.lanes() * shape_.batch, [&](std::int64_t task, std::int64_t index) {
      const std::int64_t lane = task / shape_.batch;
      for_each_chunk(shape_, lane, [&](const NeuronRange& range) {
        of_tile(worker(index), TilePlace{lane, lane / shape_.groups(), task % shape_.batch, range});
      });
    });
  }

  /// The same of tiles that add to gradients of their neurons: of_tile(Worker&, TilePlace, wait)
  /// calls wait() before it adds, which returns when the samples before have added theirs. Lanes
  /// are shared out with all their samples where threads have equally many, else a sample at a
  /// time.
  template <typename OfTile>
  void for_each_adding_tile(const OfTile& of_tile) {
    const std::int64_t lanes = shape_.lanes();
    const std::int64_t at_once = lanes % kernels::num_workers() == 0 ? shape_.batch : 1;
    constexpr std::int64_t kMostChunks = FusedShape::kGroupNeurons / FusedShape::kMinChunk;
    SampleOrder order(lanes * kMostChunks);
    std::atomic<std::int64_t> next = 0;  // ascending: who waits, waits for one that has begun
    kernels::run_tasks(lanes * shape_.batch / at_once, [&](std::int64_t, std::int64_t index) {
      const std::int64_t task = next++;
      const std::int64_t lane = task % lanes;
      try {
        for (std::int64_t sample = task / lanes * at_once, end = sample + at_once; sample < end;
             ++sample) {
          for_each_chunk(shape_, lane, [&](const NeuronRange& range) {
            const std::int64_t chunk =
                range.begin % FusedShape::kGroupNeurons / shape_.chunk() + lane * kMostChunks;
            of_tile(worker(index), TilePlace{lane, lane / shape_.groups(), sample, range},
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

  /// out = relu(values weightᵀ), a span of a tile.
  void encode(Worker& worker, const Input& values, const Input& weight,
              const kernels::Matrix<S>& out) const;
  /// The same of all neurons: values (B, T, D), or (nh, B, T, D) with rows of each head's own; out
  /// (nh, B, T, N).
  void encode(const at::Tensor& values, const at::Tensor& weight, const at::Tensor& out);

  /// (parts, ...) -> the sum over parts, in order, in the place of the first.
  [[nodiscard]] at::Tensor sum_parts(const at::Tensor& parts) const;
  /// (nh * groups, ...) -> the sums over each head's groups, (nh, ...).
  [[nodiscard]] at::Tensor sum_groups(const at::Tensor& parts) const;

  /// LN of rows (..., D): spoils `values`, writes `normalized`; returns one over each deviation.
  [[nodiscard]] at::Tensor normalize(const at::Tensor& values, const at::Tensor& normalized) const;
  /// gradient of W: that of the normalized rows, becomes that of the rows before.
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
