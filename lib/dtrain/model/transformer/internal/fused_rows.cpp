#include "dtrain/model/transformer/internal/fused_rows.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "dtrain/base/error.h"
#include "dtrain/kernels/row_types.h"
#include "dtrain/model/transformer/internal/transformer_rows.h"

namespace dtrain::model {
namespace {

using kernels::for_type;
using kernels::kWideType;
using kernels::log_sums_in;
using kernels::LogSum;
using kernels::stored;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr std::int64_t kTaskElements = 16384;  // the least that is worth another thread

template <typename S>
const auto& transformer_rows() {
  if constexpr (std::is_same_v<S, float>) {
    return kernels::choose(kFloatTransformerBaseline, kFloatTransformerAvx2,
                           kFloatTransformerAvx512);
  } else if constexpr (std::is_same_v<S, double>) {
    return kernels::choose(kDoubleTransformerBaseline, kDoubleTransformerAvx2,
                           kDoubleTransformerAvx512);
  } else {
    return kernels::choose(kBfloat16TransformerBaseline, kBfloat16TransformerAvx2,
                           kBfloat16TransformerAvx512);
  }
}

// The memory of a contiguous tensor, as row kernels take it.
template <typename S>
auto* data(const at::Tensor& tensor) {
  return stored(tensor.mutable_data_ptr<S>());
}

// Calls of_row(i) for each row of `count` elements, in parallel.
template <typename OfRow>
void for_each_row(std::int64_t rows, std::int64_t count, const OfRow& of_row) {
  const std::int64_t grain = std::max<std::int64_t>(1, kTaskElements / count);
  at::parallel_for(0, rows, grain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) of_row(row);
  });
}

// Calls of_part(first, count) for parts of `size` elements, in parallel.
template <typename OfPart>
void for_each_part(std::int64_t size, const OfPart& of_part) {
  at::parallel_for(0, size, kTaskElements,
                   [&](std::int64_t begin, std::int64_t end) { of_part(begin, end - begin); });
}

class FusedRmsNorm : public torch::autograd::Function<FusedRmsNorm> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& weight,
                            double epsilon) {
    const at::Tensor rows = x.contiguous();
    const std::int64_t count = rows.size(-1);
    const at::Tensor out = at::empty_like(rows);
    const at::Tensor scales = for_type(x.scalar_type(), [&]<typename S>(S) {
      using W = typename kernels::SumOf<S>::Type;
      at::Tensor found = at::empty({rows.numel() / count}, x.options().dtype(kWideType<S>));
      W* scale = found.mutable_data_ptr<W>();
      for_each_row(found.numel(), count, [&](std::int64_t row) {
        scale[row] = transformer_rows<S>().rms_norm(data<S>(rows) + row * count, data<S>(weight),
                                                    epsilon, data<S>(out) + row * count, count);
      });
      return found;
    });
    ctx->save_for_backward({rows, weight, scales});
    return out;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto saved = ctx->get_saved_variables();
    const at::Tensor& x = saved[0];
    const at::Tensor& weight = saved[1];
    const at::Tensor d_out = grads[0].contiguous();
    const at::Tensor d_x = at::empty_like(x);
    const at::Tensor d_weight = for_type(x.scalar_type(), [&]<typename S>(S) {
      return add_rows<S>(d_out, x, weight, saved[2], d_x, ctx->needs_input_grad(1));
    });
    return {d_x, d_weight, at::Tensor()};
  }

 private:
  // Rows whose parts of the weight's gradient are summed one by one. The sums are then added in
  // order, so that no bit depends on the number of threads.
  static constexpr std::int64_t kRowsPerSum = 64;

  // Computes d_x and returns the weight's gradient if it is needed.
  template <typename S>
  static at::Tensor add_rows(const at::Tensor& d_out, const at::Tensor& x, const at::Tensor& weight,
                             const at::Tensor& scales, const at::Tensor& d_x, bool needs_weight) {
    using W = typename kernels::SumOf<S>::Type;
    const std::int64_t count = weight.numel();
    const std::int64_t rows = scales.numel();
    const std::int64_t blocks = (rows + kRowsPerSum - 1) / kRowsPerSum;
    at::Tensor sums;
    if (needs_weight) sums = at::zeros({blocks, count}, scales.options());
    for_each_row(blocks, kRowsPerSum * count, [&](std::int64_t block) {
      W* sum = needs_weight ? sums.mutable_data_ptr<W>() + block * count : nullptr;
      const std::int64_t end = std::min(rows, (block + 1) * kRowsPerSum);
      for (std::int64_t row = block * kRowsPerSum; row < end; ++row) {
        transformer_rows<S>().rms_norm_backward(
            data<S>(d_out) + row * count, data<S>(x) + row * count, data<S>(weight),
            scales.const_data_ptr<W>()[row], data<S>(d_x) + row * count, sum, count);
      }
    });
    if (!needs_weight) return sums;
    W* total = sums.mutable_data_ptr<W>();
    for (std::int64_t block = 1; block < blocks; ++block) {
      transformer_rows<S>().add(total + block * count, total, count);
    }
    return sums[0].to(weight.scalar_type(), /*non_blocking=*/false, /*copy=*/true);
  }
};

// x (..., H, T, d), whose memory is that of (..., T, H, d) as linear maps give it and attention takes
// it; the result's is too.
at::Tensor rotated_heads(const at::Tensor& x, const at::Tensor& cosine, const at::Tensor& sine,
                         int direction) {
  const at::Tensor rows = x.transpose(-3, -2).contiguous();  // (..., T, H, d)
  const at::Tensor out = at::empty_like(rows);
  const std::int64_t heads = rows.size(-2);
  const std::int64_t length = rows.size(-3);
  const std::int64_t size = rows.size(-1);
  for_type(x.scalar_type(), [&]<typename S>(S) {
    using W = typename kernels::SumOf<S>::Type;
    for_each_row(rows.numel() / (heads * size), heads * size, [&](std::int64_t row) {
      const std::int64_t angles = row % length * (size / 2);
      for (std::int64_t head = row * heads; head < (row + 1) * heads; ++head) {
        transformer_rows<S>().rotate_halves(data<S>(rows) + head * size, data<S>(cosine) + angles,
                                            data<S>(sine) + angles, static_cast<W>(direction),
                                            data<S>(out) + head * size, size / 2);
      }
    });
  });
  return out.transpose(-3, -2);
}

class FusedRotation : public torch::autograd::Function<FusedRotation> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& cosine,
                            const at::Tensor& sine) {
    ctx->save_for_backward({cosine, sine});
    return rotated_heads(x, cosine, sine, 1);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto saved = ctx->get_saved_variables();
    return {rotated_heads(grads[0], saved[0], saved[1], -1), at::Tensor(), at::Tensor()};
  }
};

class FusedSwiGlu : public torch::autograd::Function<FusedSwiGlu> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& gate, const at::Tensor& up) {
    const at::Tensor gates = gate.contiguous();
    const at::Tensor ups = up.contiguous();
    const at::Tensor out = at::empty_like(gates);
    for_type(gate.scalar_type(), [&]<typename S>(S) {
      for_each_part(out.numel(), [&](std::int64_t first, std::int64_t count) {
        transformer_rows<S>().swiglu(data<S>(gates) + first, data<S>(ups) + first,
                                     data<S>(out) + first, count);
      });
    });
    ctx->save_for_backward({gates, ups});
    return out;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto saved = ctx->get_saved_variables();
    const at::Tensor d_out = grads[0].contiguous();
    const at::Tensor d_gate = at::empty_like(saved[0]);
    const at::Tensor d_up = at::empty_like(saved[1]);
    for_type(d_out.scalar_type(), [&]<typename S>(S) {
      for_each_part(d_out.numel(), [&](std::int64_t first, std::int64_t count) {
        transformer_rows<S>().swiglu_backward(data<S>(d_out) + first, data<S>(saved[0]) + first,
                                              data<S>(saved[1]) + first, data<S>(d_gate) + first,
                                              data<S>(d_up) + first, count);
      });
    });
    return {d_gate, d_up};
  }
};

class FusedGelu : public torch::autograd::Function<FusedGelu> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x) {
    const at::Tensor values = x.contiguous();
    const at::Tensor out = at::empty_like(values);
    for_type(x.scalar_type(), [&]<typename S>(S) {
      for_each_part(out.numel(), [&](std::int64_t first, std::int64_t count) {
        transformer_rows<S>().gelu(data<S>(values) + first, data<S>(out) + first, count);
      });
    });
    ctx->save_for_backward({values});
    return out;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto saved = ctx->get_saved_variables();
    const at::Tensor d_out = grads[0].contiguous();
    const at::Tensor d_x = at::empty_like(saved[0]);
    for_type(d_out.scalar_type(), [&]<typename S>(S) {
      for_each_part(d_out.numel(), [&](std::int64_t first, std::int64_t count) {
        transformer_rows<S>().gelu_backward(data<S>(d_out) + first, data<S>(saved[0]) + first,
                                            data<S>(d_x) + first, count);
      });
    });
    return {d_x};
  }
};

class FusedCrossEntropy : public torch::autograd::Function<FusedCrossEntropy> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& logits,
                            const at::Tensor& targets) {
    const at::Tensor scores = logits.contiguous();
    const at::Tensor tokens = targets.contiguous();
    const std::int64_t vocab = scores.size(1);
    return for_type(scores.scalar_type(), [&]<typename S>(S) {
      using W = typename kernels::SumOf<S>::Type;
      const auto wide = scores.options().dtype(kWideType<S>);
      const at::Tensor losses = at::empty({scores.size(0)}, wide);
      const at::Tensor log_sums = at::empty({scores.size(0), 2}, wide);
      for_each_row(scores.size(0), vocab, [&](std::int64_t row) {
        const S* values = scores.const_data_ptr<S>() + row * vocab;
        const LogSum<W> sum =
            transformer_rows<S>().log_sum_exp(data<S>(scores) + row * vocab, vocab);
        const std::int64_t target = tokens.const_data_ptr<std::int64_t>()[row];
        DTRAIN_CHECK(target >= 0 && target < vocab, "token {} of {}", target, vocab);
        log_sums_in<W>(log_sums)[row] = sum;
        losses.mutable_data_ptr<W>()[row] =
            sum.log_sum - (static_cast<W>(values[target]) - sum.top);
      });
      ctx->save_for_backward({scores, tokens, log_sums});
      return losses;
    });
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto saved = ctx->get_saved_variables();
    const at::Tensor& scores = saved[0];
    const at::Tensor d_losses = grads[0].contiguous();
    const at::Tensor d_scores = at::empty_like(scores);
    const std::int64_t vocab = scores.size(1);
    for_type(scores.scalar_type(), [&]<typename S>(S) {
      using W = typename kernels::SumOf<S>::Type;
      for_each_row(scores.size(0), vocab, [&](std::int64_t row) {
        transformer_rows<S>().logits_backward(
            data<S>(scores) + row * vocab, log_sums_in<W>(saved[2])[row],
            d_losses.const_data_ptr<W>()[row], saved[1].const_data_ptr<std::int64_t>()[row],
            data<S>(d_scores) + row * vocab, vocab);
      });
    });
    return {d_scores, at::Tensor()};
  }
};

}  // namespace

const RowOperations kFusedRows{
    .is_fused = true,
    .rms_norm = [](const at::Tensor& x, const at::Tensor& weight, double epsilon) -> at::Tensor {
      return FusedRmsNorm::apply(x, weight, epsilon);
    },
    .rotate_halves = [](const at::Tensor& x, const RotaryTable& table) -> at::Tensor {
      return FusedRotation::apply(x, table.cosine, table.sine);
    },
    .swiglu = [](const at::Tensor& gate, const at::Tensor& up) -> at::Tensor {
      return FusedSwiGlu::apply(gate, up);
    },
    .gelu = [](const at::Tensor& x) -> at::Tensor { return FusedGelu::apply(x); },
    .cross_entropy = [](const at::Tensor& logits, const at::Tensor& targets) -> at::Tensor {
      return FusedCrossEntropy::apply(logits, targets);
    }};

}  // namespace dtrain::model
