#include "dtrain/model/bdh/internal/fused/fused_work.h"

#include <algorithm>

#include "dtrain/model/bdh/internal/strict_lower.h"
#include "dtrain/model/dropout_element.h"

namespace dtrain::model::bdh {
namespace {

using kernels::Matrix;

// The depth of products is in neurons, positions or the width; columns are neurons, the width, or
// the positions of a triangle block.
kernels::OperandSize largest_factor(const FusedShape& shape) {
  const std::int64_t columns = std::max(shape.chunk(), shape.width);
  return {.depth = std::max(columns, shape.span), .columns = std::max(columns, kTriangleBlock)};
}

}  // namespace

template <typename S>
FusedWork<S>::FusedWork(const FusedShape& shape, const at::TensorOptions& options)
    : shape_(shape),
      options_(options),
      rows_(level_rows<S>()),
      workers_(static_cast<std::size_t>(kernels::num_workers())) {
  const std::int64_t chunk = shape.chunk();
  for (Worker& worker : workers_) {
    worker.product.reserve(largest_factor(shape));
    worker.sums.require(shape.span * chunk);
    worker.first.require(shape.span * chunk);
    worker.second.require(shape.span * chunk);
    worker.halves.resize(static_cast<std::size_t>(chunk + 2 * kDropoutBlock));
  }
}

template <typename S>
std::int64_t FusedWork<S>::bytes(const FusedShape& shape, std::int64_t threads, bool is_backward) {
  constexpr std::int64_t kLow = sizeof(S);
  constexpr std::int64_t kWide = sizeof(W);
  const std::int64_t chunk = shape.chunk();
  // Only threads that get a tile allocate a state and, in the backward pass, sums of all positions.
  const std::int64_t busy = std::min(threads, shape.head_groups() * shape.batch);
  const std::int64_t positions =
      is_backward ? busy * shape.length + (threads - busy) * shape.span : threads * shape.span;
  const std::int64_t tiles = kWide * positions * chunk + threads * 2 * kLow * shape.span * chunk;
  const std::int64_t rounded = kLow == kWide ? 0 : kLow;
  const std::int64_t state = shape.has_state() ? (kWide + rounded) * chunk * shape.width : 0;
  const std::int64_t product = kernels::Gemm<S>::bytes(largest_factor(shape));
  // The accumulator of a score matrix, which is rounded into the scores.
  const std::int64_t squares =
      is_backward && kLow != kWide ? std::min(threads, shape.heads * shape.batch) : std::int64_t{0};
  return tiles + busy * state + threads * product + squares * kWide * shape.span * shape.span;
}

template <typename S>
void FusedWork<S>::add_gradient(Worker& worker, const Matrix<S>& neurons, const Input& values,
                                const GradientSum& gradient, std::int64_t head,
                                const NeuronRange& range, bool adds) const {
  if (!gradient.sum().defined()) return;
  const std::int64_t first = head * shape_.neurons + range.begin;
  const Matrix<W> sum{gradient.sum().mutable_data_ptr<W>() + first * shape_.width, range.count,
                      shape_.width};
  worker.product.multiply(neurons.transposed().read_only(), values, sum,
                          adds || !gradient.is_first());
}

template <typename S>
void FusedWork<S>::encode(Worker& worker, const Input& values, const Input& weight,
                          const Matrix<S>& out) const {
  const Matrix<W> sums{worker.sums.data(), out.rows, out.columns};
  worker.product.write(values, weight.transposed(), sums);
  rows_.rectify(sums.data, stored(out.data), out.rows * out.columns);
}

template <typename S>
void FusedWork<S>::encode(const at::Tensor& values, const at::Tensor& weight,
                          const at::Tensor& out) {
  for_each_tile([&](Worker& worker, const Tile& place) {
    const auto& [head_group, head, sample, range] = place;
    const std::int64_t first = values.dim() == 4 ? head * shape_.batch : 0;
    for_each_span(shape_, [&](const Span& span) {
      encode(worker, rows_of(input(values, first + sample), span), weight_rows(weight, head, range),
             rows_of(tile(out, head, sample, range), span));
    });
  });
}

template <typename S>
at::Tensor FusedWork<S>::sum_parts(const at::Tensor& parts) const {
  const at::Tensor sum = parts.select(0, 0);
  const std::int64_t size = sum.numel();
  W* sums = sum.mutable_data_ptr<W>();
  constexpr std::int64_t kElements = 8192;  // per task
  kernels::run_tasks((size + kElements - 1) / kElements, [&](std::int64_t task, std::int64_t) {
    const std::int64_t begin = task * kElements;
    const std::int64_t count = std::min(kElements, size - begin);
    for (std::int64_t part = 1; part < parts.size(0); ++part) {
      rows_.add(sums + part * size + begin, sums + begin, count);
    }
  });
  return sum;
}

template <typename S>
at::Tensor FusedWork<S>::sum_groups(const at::Tensor& parts) const {
  if (shape_.groups_per_head() == 1) return parts;
  const at::Tensor by_head = parts.unflatten(0, {shape_.heads, shape_.groups_per_head()});
  for (std::int64_t head = 0; head < shape_.heads; ++head) (void)sum_parts(by_head[head]);
  return by_head.select(1, 0).contiguous();
}

template <typename S>
at::Tensor FusedWork<S>::normalize(const at::Tensor& values, const at::Tensor& normalized) const {
  const std::int64_t width = shape_.width;
  const at::Tensor rstd = wide_empty({values.numel() / width});
  for_each_row(rstd.numel(), [&](std::int64_t row) {
    W* value = values.mutable_data_ptr<W>() + row * width;
    rstd.mutable_data_ptr<W>()[row] = rows_.normalize(value, width);
    rows_.narrow(value, stored(normalized.mutable_data_ptr<S>() + row * width), width);
  });
  return rstd;
}

template <typename S>
void FusedWork<S>::normalize_backward(at::Tensor& gradient, const at::Tensor& normalized,
                                      const at::Tensor& rstd) const {
  const std::int64_t width = shape_.width;
  for_each_row(rstd.numel(), [&](std::int64_t row) {
    rows_.normalize_backward(gradient.mutable_data_ptr<W>() + row * width,
                             stored(normalized.mutable_data_ptr<S>() + row * width),
                             rstd.const_data_ptr<W>()[row], width);
  });
}

template class FusedWork<float>;
template class FusedWork<double>;
template class FusedWork<c10::BFloat16>;

}  // namespace dtrain::model::bdh
