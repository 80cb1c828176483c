#include "dtrain/parallel/tensor/split_vocabulary.h"

#include <ATen/ops/embedding.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <torch/csrc/autograd/custom_function.h>

#include "dtrain/model/tensor_axis.h"
#include "dtrain/parallel/tensor/splits.h"

namespace dtrain::parallel {
namespace {

/// Which of some tokens a rank has.
struct Own {
  at::Tensor is_absent;  ///< bool
  at::Tensor index;      ///< within the rank's part; 0 where absent
};

Own own_of(const at::Tensor& tokens, std::int64_t first, std::int64_t count) {
  const at::Tensor index = tokens - first;
  const at::Tensor is_absent = index.lt(0).logical_or(index.ge(count));
  return {.is_absent = is_absent, .index = index.masked_fill(is_absent, 0)};
}

// Exponential and logarithm come from MKL's vector functions, which choose their code in the first
// call of a process: where two ranks that are threads make it at once, or two threads of one rank,
// one of them can get a code of low accuracy. So the first calls are made here, on a few elements
// and thus in one thread, while every other rank waits.
void make_first_calls_alone() {
  static const bool are_made = [] {
    for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
      (void)at::ones({8}, at::TensorOptions().dtype(dtype)).exp_().log_();
    }
    return true;
  }();
  (void)are_made;
}

class SplitCrossEntropy : public torch::autograd::Function<SplitCrossEntropy> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& logits,
                            const at::Tensor& targets, std::int64_t group_address,
                            std::int64_t first) {
    make_first_calls_alone();
    auto& group = *reinterpret_cast<comm::ProcessGroup*>(group_address);
    const at::Tensor largest = logits.amax(1);  // (rows)
    group.all_reduce(largest, comm::ReduceOp::max).wait();

    const at::Tensor shifted = logits - largest.unsqueeze(1);  // (rows, V/tp)
    const Own own = own_of(targets, first, logits.size(1));
    // Sum of exponentials and the target's logit, side by side so that they travel together.
    const at::Tensor sums = at::empty({2, logits.size(0)}, logits.options());
    sums[1].copy_(shifted.gather(1, own.index.unsqueeze(1)).squeeze(1));
    sums[1].masked_fill_(own.is_absent, 0);
    const at::Tensor probabilities = shifted.exp_();  // in the memory of `shifted`
    sums[0].copy_(probabilities.sum(1));
    group.all_reduce(sums).wait();

    probabilities.div_(sums[0].unsqueeze(1));
    ctx->save_for_backward({probabilities, own.index, own.is_absent});
    return sums[0].log() - sums[1];
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 const torch::autograd::variable_list& grads) {
    const auto saved = ctx->get_saved_variables();
    const at::Tensor scale = grads[0].unsqueeze(1);   // (rows, 1)
    const at::Tensor gradient = saved[0].mul(scale);  // (rows, V/tp)
    const at::Tensor taken = scale.neg().masked_fill(saved[2].unsqueeze(1), 0);
    gradient.scatter_add_(1, saved[1].unsqueeze(1), taken);
    return {gradient, at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor split_embedding(comm::ProcessGroup& group, const at::Tensor& weight,
                           const at::Tensor& ids, std::int64_t first) {
  const Own own = own_of(ids, first, weight.size(0));
  // Wide, since a row's gradient adds up over the places of its token.
  const at::Tensor rows = at::embedding(model::widened(weight), own.index)
                              .masked_fill(own.is_absent.unsqueeze(-1), 0);  // (..., D)
  return model::widened(reduce(group, rows, weight.scalar_type()));
}

at::Tensor split_cross_entropy(comm::ProcessGroup& group, const at::Tensor& logits,
                               const at::Tensor& targets, std::int64_t first) {
  return SplitCrossEntropy::apply(logits, targets, reinterpret_cast<std::int64_t>(&group), first);
}

}  // namespace dtrain::parallel
