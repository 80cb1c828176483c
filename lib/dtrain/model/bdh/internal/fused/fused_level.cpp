#include "dtrain/model/bdh/internal/fused/fused_level.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>

#include "dtrain/model/bdh/internal/fused/fused_attention.h"

namespace dtrain::model::bdh {
namespace {

// The tensors that forward saves, in this order.
enum SavedOfLevel : std::size_t { kXs, kYs, kScores, kYkv, kYkvRstd, kY, kYRstd, kOut, kOutRstd };

}  // namespace

template <typename S>
struct FusedLevel::Passes {
  Passes(const FusedLevel& level, const at::Tensor& x, const BlockContext& context)
      : work(level.shape_of(x.size(0), x.size(1)), x.options()),
        attention(work, level.rope_->table(x.size(1), context.buffer_dtype,
                                           x.options().dtype(kWideType<S>))),
        gate(work, level.dropout_of(context)) {}

  FusedWork<S> work;
  FusedAttention<S> attention;
  FusedGate<S> gate;
};

FusedShape FusedLevel::shape_of(std::int64_t batch, std::int64_t length) const {
  return {.batch = batch,
          .length = length,
          .width = slice_.whole.width,
          .heads = slice_.heads,
          .neurons = slice_.neurons,
          .span = options_.span == 0 ? length : std::min(options_.span, length)};
}

FusedDropout FusedLevel::dropout_of(const BlockContext& context) const {
  if (!context.training || slice_.whole.dropout == 0) return {};
  return {.probability = slice_.whole.dropout,
          .seed = context.seed,
          .level = level_,
          .first_sample = *context.first_sample.const_data_ptr<std::int64_t>(),
          .first_neuron = slice_.first_neuron};
}

template <typename S>
at::Tensor FusedLevel::run(const at::Tensor& x, const BlockContext& context,
                           std::vector<at::Tensor>* saved) {
  TensorAxis& axis = context.tensor_axis;
  slice_.check(axis);
  Passes<S> passes(*this, x, context);
  const FusedShape& shape = passes.work.shape();
  const auto empty = [&](at::IntArrayRef sizes) { return at::empty(sizes, x.options()); };
  const at::Tensor xs = empty({shape.heads, shape.batch, shape.length, shape.neurons});
  const at::Tensor scores = empty({shape.heads, shape.batch, shape.length, shape.span});
  at::Tensor attended = axis.reduce_within(
      kHeadSubgroup, passes.attention.forward(x, context.use(ids_[0]), xs, scores));
  const at::Tensor y_kv = empty(attended.sizes());  // (nh, B, T, D)
  const at::Tensor y_kv_rstd = passes.work.normalize(attended, y_kv);
  attended.reset();
  context.report(fmt::format("act.layer{}.ykv", level_), y_kv.transpose(0, 1));

  const bool keeps_neurons = saved != nullptr && !options_.recomputes_gates;
  const at::Tensor ys = keeps_neurons ? empty(xs.sizes()) : at::Tensor();
  const at::Tensor decoded =
      axis.reduce(passes.gate.forward(y_kv, xs, context.use(ids_[1]), context.use(ids_[2]), ys));
  const at::Tensor y = at::empty_like(x);  // (B, T, D)
  const at::Tensor y_rstd = passes.work.normalize(decoded, y);
  context.report(fmt::format("act.layer{}.ymlp", level_), y);
  const at::Tensor out = at::empty_like(x);
  const at::Tensor out_rstd = passes.work.normalize(x.to(kWideType<S>) + y, out);
  context.report(fmt::format("act.layer{}.out", level_), out);
  if (saved != nullptr) {
    *saved = {
        keeps_neurons ? xs : at::Tensor(), ys, scores, y_kv, y_kv_rstd, y, y_rstd, out, out_rstd};
  }
  return out;
}

at::Tensor FusedLevel::forward(const at::Tensor& x, const BlockContext& context) {
  return for_type(x.scalar_type(), [&]<typename S>(S) { return run<S>(x, context, nullptr); });
}

at::Tensor FusedLevel::forward(const at::Tensor& x, const BlockContext& context,
                               std::vector<at::Tensor>& saved) {
  return for_type(x.scalar_type(), [&]<typename S>(S) { return run<S>(x, context, &saved); });
}

template <typename S>
at::Tensor FusedLevel::run_backward(const at::Tensor& x, const at::Tensor& gradient,
                                    std::span<const at::Tensor> saved, const BlockContext& context,
                                    const GradientOf& gradient_of) {
  TensorAxis& axis = context.tensor_axis;
  const at::ScalarType wide = kWideType<S>;
  Passes<S> passes(*this, x, context);
  // The gradient of x + y, and from it that of the decoder's output.
  at::Tensor d_sum = gradient.to(wide, /*non_blocking=*/false, /*copy=*/true).contiguous();
  passes.work.normalize_backward(d_sum, saved[kOut], saved[kOutRstd]);
  at::Tensor d_decoded = d_sum.clone();
  passes.work.normalize_backward(d_decoded, saved[kY], saved[kYRstd]);

  at::Tensor xs = saved[kXs];
  at::Tensor ys = saved[kYs];
  if (options_.recomputes_gates) {
    xs = at::empty({slice_.heads, x.size(0), x.size(1), slice_.neurons}, x.options());
    ys = at::empty_like(xs);
    passes.work.encode(x, context.use(ids_[0]), xs);
    passes.work.encode(saved[kYkv], context.use(ids_[1]), ys);
  }
  GradientSum encoder_v(gradient_of(ids_[1]), wide);
  GradientSum decoder(gradient_of(ids_[2]), wide);
  at::Tensor d_y_kv = axis.reduce_within(
      kHeadSubgroup,
      passes.gate.backward(d_decoded.to(x.scalar_type()), saved[kYkv], xs, context.use(ids_[1]),
                           context.use(ids_[2]), ys, {.encoder_v = encoder_v, .decoder = decoder}));
  encoder_v.finish();
  decoder.finish();
  passes.work.normalize_backward(d_y_kv, saved[kYkv], saved[kYkvRstd]);

  GradientSum encoder(gradient_of(ids_[0]), wide);
  const at::Tensor d_x =
      passes.attention.backward(d_y_kv.to(x.scalar_type()), x, context.use(ids_[0]), xs,
                                /*d_xs=*/ys, saved[kScores], encoder);
  encoder.finish();
  return axis.reduce(d_x).add(d_sum).to(x.scalar_type());
}

at::Tensor FusedLevel::backward(const at::Tensor& x, const at::Tensor& gradient,
                                std::span<const at::Tensor> saved, const BlockContext& context,
                                const GradientOf& gradient_of) {
  return for_type(x.scalar_type(), [&]<typename S>(S) {
    return run_backward<S>(x, gradient, saved, context, gradient_of);
  });
}

BlockMemory FusedLevel::memory(const BatchShape& shape) const {
  const FusedShape sizes = shape_of(shape.sequences, shape.length);
  const auto low = static_cast<std::int64_t>(c10::elementSize(shape.dtype));
  const std::int64_t wide = std::max<std::int64_t>(4, low);
  const bool is_low = low != wide;
  const bool has_groups = sizes.groups_per_head() > 1;
  const std::int64_t row = sizes.row_elements();
  const std::int64_t neurons = sizes.neuron_elements() * low;
  const std::int64_t scores = sizes.score_elements() * low;
  const std::int64_t statistics = sizes.rows() * wide;
  const std::int64_t heads = sizes.heads * row * wide;                  // of sums (nh, B, T, D)
  const std::int64_t group_outputs = sizes.head_groups() * row * wide;  // (B, T, D) per head group
  // All-reduces work on copies.
  const std::int64_t head_sum = slice_.ranks_per_head > 1 ? 2 * heads : 0;
  const std::int64_t sum = slice_.place.is_whole() ? 0 : 2 * row * wide;
  const std::int64_t group_sum = has_groups ? heads : 0;

  const auto work = [&](bool is_backward) {  // scratch memory of all threads
    return for_type(shape.dtype, [&]<typename S>(S) {
      return FusedWork<S>::bytes(sizes, options_.threads, is_backward);
    });
  };

  BlockMemory memory{.output = row * low};
  const std::int64_t kept = options_.recomputes_gates ? 0 : 2 * neurons;  // xs, ys
  const std::int64_t normed = sizes.heads * (row * low + statistics);     // y_kv
  memory.saved = kept + scores + normed + row * low + 2 * statistics;     // y
  const auto forward = [&](std::int64_t ys) {
    // Scores are summed beside their place where a head has several group_outputs, or is of 16 bits.
    const bool in_place = !has_groups && !is_low;
    const std::int64_t parts =
        in_place ? 0 : sizes.groups_per_head() * sizes.score_elements() * wide;
    const std::int64_t by_state = sizes.has_state() ? group_outputs + group_sum : 0;
    const std::int64_t attending = parts + by_state + heads;
    const std::int64_t normalizing = head_sum + heads + normed;
    const std::int64_t decoding = normed + ys + group_outputs + sum;
    const std::int64_t ending = 2 * (row * low + statistics) + (is_low ? 2 : 1) * row * wide;
    return neurons + scores + std::max({attending, normalizing, decoding + ending}) +
           work(/*is_backward=*/false);
  };
  memory.forward = forward(kept / 2);
  memory.forward_without_graph = forward(0);
  const std::int64_t at_gate = (is_low ? row * low : 0) + group_outputs + group_sum + head_sum;
  const std::int64_t at_attention =
      heads + (is_low ? sizes.heads * row * low : 0) + heads + group_outputs;
  const std::int64_t streams = 2 * row * wide;  // the gradients of both norms
  const std::int64_t recomputed = 2 * neurons - kept;
  memory.backward = memory.saved + recomputed + streams + std::max(at_gate, at_attention + sum) +
                    work(/*is_backward=*/true);
  return memory;
}

}  // namespace dtrain::model::bdh
