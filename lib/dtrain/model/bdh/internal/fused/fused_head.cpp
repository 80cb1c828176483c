#include "dtrain/model/bdh/internal/fused/fused_head.h"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "dtrain/base/error.h"
#include "dtrain/kernels/tasks.h"
#include "dtrain/model/bdh/internal/fused/fused_work.h"

namespace dtrain::model::bdh {
namespace {

using kernels::log_sums_in;
using kernels::Matrix;
using kernels::OperandSize;

template <typename T>
Matrix<const T> factor(const at::Tensor& m) {
  return {m.const_data_ptr<T>(), m.size(0), m.size(1), m.stride(0), m.stride(1)};
}

// The block of c that one task computes.
struct TaskSize {
  std::int64_t rows;
  std::int64_t columns;
};

// Depends on sizes alone. Each task packs its block of b, which costs as much as tens of rows of the
// product, so tasks have many rows if b is the weight of a large vocabulary.
TaskSize task_size(const OperandSize& b, std::int64_t rows) {
  constexpr std::int64_t kLarge = 4096;
  constexpr std::int64_t kColumns = 512;  // a block of b stays in a core's cache
  if (b.columns > kLarge) return {256, kColumns};
  if (b.depth > kLarge) return {128, std::min<std::int64_t>(64, b.columns)};
  // With few rows, small tasks occupy all threads; with many, large tasks amortize packing b.
  const std::int64_t across = (b.columns + kColumns - 1) / kColumns;
  return {rows * across >= 2048 ? 128 : 32, std::min(kColumns, b.columns)};
}

// c = a b or c += a b, split into blocks for tasks. All are (rows, columns).
template <typename S>
void multiply(const at::Tensor& a, const at::Tensor& b, const at::Tensor& c, bool adds) {
  using W = typename kernels::SumOf<S>::Type;
  const Matrix<W> out{c.mutable_data_ptr<W>(), c.size(0), c.size(1)};
  const TaskSize size = task_size({.depth = b.size(0), .columns = out.columns}, out.rows);
  const std::int64_t across = (out.columns + size.columns - 1) / size.columns;
  const std::int64_t down = (out.rows + size.rows - 1) / size.rows;
  std::vector<kernels::Gemm<S>> products(static_cast<std::size_t>(kernels::num_workers()));
  for (auto& product : products) product.reserve({.depth = b.size(0), .columns = size.columns});
  kernels::run_tasks(down * across, [&](std::int64_t task, std::int64_t worker) {
    const std::int64_t row = task % down * size.rows;
    const std::int64_t column = task / down * size.columns;
    const std::int64_t rows = std::min(size.rows, out.rows - row);
    const std::int64_t columns = std::min(size.columns, out.columns - column);
    products[static_cast<std::size_t>(worker)].multiply(
        factor<S>(a).row_block(row, rows), factor<S>(b).column_block(column, columns),
        out.block(row, rows, column, columns), adds);
  });
}

// The most logits, in bytes, that are materialized at once. A microbatch with more recomputes them
// in the backward pass.
constexpr std::int64_t kLogitBytes = 64 << 20;

// The target token of a row. targets (B, T), contiguous.
std::int64_t target_of(const at::Tensor& targets, std::int64_t row, std::int64_t vocab) {
  const std::int64_t target = targets.const_data_ptr<std::int64_t>()[row];
  DTRAIN_CHECK(target >= 0 && target < vocab, "token {} of {}", target, vocab);
  return target;
}

enum SavedOfHead : std::size_t { kLogSums, kLogits };  // logits: undefined if recomputed

}  // namespace

std::int64_t FusedHead::rows_at_once(std::int64_t rows, std::int64_t wide) const {
  const std::int64_t fitting = kLogitBytes / (slice_.vocab * wide) / 32 * 32;
  return std::min(rows, std::max<std::int64_t>(32, fitting));
}

at::Tensor FusedHead::forward(const at::Tensor& x, const BlockContext& context) {
  std::vector<at::Tensor> saved;
  return forward(x, context, saved);
}

at::Tensor FusedHead::forward(const at::Tensor& x, const BlockContext& context,
                              std::vector<at::Tensor>& saved) {
  slice_.check(context.tensor_axis);
  const at::Tensor weight = context.use(ids_[0]);               // (D, V)
  const at::Tensor rows = x.reshape({-1, slice_.whole.width});  // (B*T, D)
  const at::Tensor targets = context.targets.contiguous();      // (B, T)
  return for_type(x.scalar_type(), [&]<typename S>(S) {
    using W = typename kernels::SumOf<S>::Type;
    const auto wide = x.options().dtype(kWideType<S>);
    const at::Tensor losses = at::empty({x.size(0), x.size(1)}, wide);
    const at::Tensor log_sums = at::empty({rows.size(0), 2}, wide);  // of each LogSum
    // A tap receives all logits.
    const std::int64_t at_once = context.tap ? rows.size(0) : rows_at_once(rows.size(0), sizeof(W));
    const at::Tensor logits = at::empty({at_once, slice_.vocab}, wide);
    for (std::int64_t first = 0; first < rows.size(0); first += at_once) {
      const std::int64_t count = std::min(at_once, rows.size(0) - first);
      multiply<S>(rows.narrow(0, first, count), weight, logits.narrow(0, 0, count), false);
      for_each_row(count, [&](std::int64_t row) {
        const W* values = logits.const_data_ptr<W>() + row * slice_.vocab;
        const LogSum<W> sum = level_rows<S>().log_sum_exp(values, slice_.vocab);
        log_sums_in<W>(log_sums)[first + row] = sum;
        losses.mutable_data_ptr<W>()[first + row] =
            sum.log_sum - (values[target_of(targets, first + row, slice_.vocab)] - sum.top);
      });
    }
    const bool has_all = at_once == rows.size(0);
    if (context.tap) context.report("logits", logits.view({x.size(0), x.size(1), slice_.vocab}));
    saved = {log_sums, has_all ? logits : at::Tensor()};
    return losses;
  });
}

at::Tensor FusedHead::backward(const at::Tensor& x, const at::Tensor& gradient,
                               std::span<const at::Tensor> saved, const BlockContext& context,
                               const GradientOf& gradient_of) {
  const at::Tensor weight = context.use(ids_[0]);  // (D, V)
  const at::Tensor rows = x.reshape({-1, slice_.whole.width});
  const at::Tensor targets = context.targets.contiguous();  // (B, T)
  return for_type(x.scalar_type(), [&]<typename S>(S) {
    using W = typename kernels::SumOf<S>::Type;
    const at::Tensor d_losses = gradient.to(kWideType<S>).contiguous();
    const at::Tensor& log_sums = saved[kLogSums];
    GradientSum sum(gradient_of(ids_[0]), kWideType<S>);
    const at::Tensor d_rows = at::empty(rows.sizes(), log_sums.options());
    const std::int64_t at_once =
        saved[kLogits].defined() ? rows.size(0) : rows_at_once(rows.size(0), sizeof(W));
    const at::Tensor logits = saved[kLogits].defined()
                                  ? saved[kLogits]
                                  : at::empty({at_once, slice_.vocab}, log_sums.options());
    const at::Tensor d_logits = at::empty({at_once, slice_.vocab}, x.options());
    for (std::int64_t first = 0; first < rows.size(0); first += at_once) {
      const std::int64_t count = std::min(at_once, rows.size(0) - first);
      const at::Tensor part = rows.narrow(0, first, count);
      if (!saved[kLogits].defined()) multiply<S>(part, weight, logits.narrow(0, 0, count), false);
      const at::Tensor d_part = d_logits.narrow(0, 0, count);
      for_each_row(count, [&](std::int64_t row) {
        level_rows<S>().logits_backward(
            logits.const_data_ptr<W>() + row * slice_.vocab, log_sums_in<W>(log_sums)[first + row],
            d_losses.const_data_ptr<W>()[first + row],
            target_of(targets, first + row, slice_.vocab),
            stored(d_part.mutable_data_ptr<S>() + row * slice_.vocab), slice_.vocab);
      });
      if (sum.sum().defined()) {
        multiply<S>(part.t(), d_part, sum.sum(), first > 0 || !sum.is_first());
      }
      multiply<S>(d_part, weight.t(), d_rows.narrow(0, first, count), false);
    }
    sum.finish();
    return d_rows.view(x.sizes()).to(x.scalar_type());
  });
}

BlockMemory FusedHead::memory(const BatchShape& shape) const {
  const auto low = static_cast<std::int64_t>(c10::elementSize(shape.dtype));
  const std::int64_t wide = std::max<std::int64_t>(4, low);
  const std::int64_t at_once = rows_at_once(shape.rows(), wide);
  const bool has_all = at_once == shape.rows();
  const std::int64_t logits = at_once * slice_.vocab * wide;
  const std::int64_t width = slice_.whole.width;
  const std::int64_t row = shape.rows() * width;
  const std::int64_t rows = shape.rows() * wide;  // one value per row
  const auto work = [&](const OperandSize& b) {   // scratch memory of all threads
    return threads_ * for_type(shape.dtype, [&]<typename S>(S) {
             return kernels::Gemm<S>::bytes({.depth = b.depth, .columns = task_size(b, 0).columns});
           });
  };
  const std::int64_t logits_work = work({.depth = width, .columns = slice_.vocab});
  const std::int64_t weight_work = work({.depth = at_once, .columns = slice_.vocab});
  const std::int64_t rows_work = work({.depth = slice_.vocab, .columns = width});
  BlockMemory memory{.output = rows, .saved = 2 * rows + (has_all ? logits : 0)};
  memory.forward = 3 * rows + logits + logits_work;
  memory.forward_without_graph = memory.forward;
  const std::int64_t rounded = low == wide ? 0 : low * row;
  memory.backward = 2 * rows + logits + at_once * slice_.vocab * low + row * wide + rounded +
                    std::max({logits_work, weight_work, rows_work});
  return memory;
}

}  // namespace dtrain::model::bdh
