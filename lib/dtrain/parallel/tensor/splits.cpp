#include "dtrain/parallel/tensor/splits.h"

#include <ATen/ops/bmm.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/custom_function.h>

#include <vector>

#include "dtrain/base/error.h"
#include "dtrain/model/vector_math.h"

namespace dtrain::parallel {
namespace {

// Returns the dtype in which partial sums of `dtype` are reduced. A partial sum can exceed
// float16's range although the full sum does not, so float16 is reduced as float32; bfloat16 has
// float32's range.
at::ScalarType reduction_dtype(at::ScalarType dtype) {
  return dtype == at::kHalf ? at::kFloat : dtype;
}

// An all-reduce of `partial` in flight, in reduction_dtype(result).
class PendingSum {
 public:
  // Collective: every rank of `group`. Async: copies `partial`; wait() returns the sum.
  PendingSum(comm::ProcessGroup& group, const at::Tensor& partial, at::ScalarType result)
      : values_(partial.to(reduction_dtype(result), /*non_blocking=*/false, /*copy=*/true,
                           at::MemoryFormat::Contiguous)),
        result_(result),
        work_(group.all_reduce(values_)) {}

  // Returns the sum in dtype `result`, with equal bits on every rank.
  //
  // Throws: what comm::Work::wait throws.
  [[nodiscard]] at::Tensor wait() {
    work_.wait();
    return values_.to(result_);
  }

 private:
  at::Tensor values_;
  at::ScalarType result_;
  comm::Work work_;
};

// Returns the batched product a b, a partial sum. If ranks share a head, float16 factors give a
// float32 product, since partial sums over the head's neurons may exceed float16's range although
// the full sum does not.
at::Tensor partial_product(const at::Tensor& a, const at::Tensor& b, bool shares_heads) {
  if (!shares_heads || a.scalar_type() != at::kHalf) return at::bmm(a, b);
  return at::bmm(model::widened(a), model::widened(b));
}

class ColumnSplitFunction : public torch::autograd::Function<ColumnSplitFunction> {
 public:
  static torch::autograd::variable_list forward(torch::autograd::AutogradContext* ctx,
                                                const at::Tensor& x, const at::Tensor& weight,
                                                std::int64_t group, bool shares_heads) {
    ctx->save_for_backward({x, weight});
    ctx->saved_data["group"] = group;
    ctx->saved_data["shares_heads"] = shares_heads;
    ctx->set_materialize_grads(false);
    const at::Tensor product =
        at::bmm(x.expand({weight.size(0), x.size(1), x.size(2)}), weight.mT());  // (h, rows, N)
    const bool is_half = x.scalar_type() == at::kHalf;
    return {product, is_half ? x.to(at::kFloat) : x.variable_data()};
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 const torch::autograd::variable_list& grads) {
    const auto saved = ctx->get_saved_variables();
    const at::Tensor& x = saved[0];
    const at::Tensor& weight = saved[1];
    const at::Tensor& dy = grads[0];  // (h, rows, N)
    DTRAIN_CHECK(dy.defined(), "a split product has no gradient");
    auto* group = reinterpret_cast<comm::ProcessGroup*>(ctx->saved_data["group"].toInt());

    at::Tensor dx = partial_product(dy, weight, ctx->saved_data["shares_heads"].toBool());
    if (x.size(0) == 1) dx = dx.sum(0, /*keepdim=*/true, wide_dtype(x));
    if (grads[1].defined()) dx = dx + grads[1];
    PendingSum sum(*group, dx, x.scalar_type());  // (1 or h, rows, D)
    at::Tensor dw;                                // (h, N, D), computed while dx is reduced
    if (ctx->needs_input_grad(1)) {
      dw = at::bmm(dy.mT(), x.expand({weight.size(0), x.size(1), x.size(2)}));
    }
    return {sum.wait(), dw, at::Tensor(), at::Tensor()};
  }

 private:
  static at::ScalarType wide_dtype(const at::Tensor& x) {
    return at::isReducedFloatingType(x.scalar_type()) ? at::kFloat : x.scalar_type();
  }
};

class ReduceFunction : public torch::autograd::Function<ReduceFunction> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& partial,
                            std::int64_t group, at::ScalarType result) {
    ctx->saved_data["dtype"] = partial.scalar_type();
    return PendingSum(*reinterpret_cast<comm::ProcessGroup*>(group), partial, result).wait();
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 const torch::autograd::variable_list& grads) {
    return {grads[0].to(ctx->saved_data["dtype"].toScalarType()), at::Tensor(), at::Tensor()};
  }
};

class ReplicateFunction : public torch::autograd::Function<ReplicateFunction> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& x,
                            std::int64_t group) {
    ctx->saved_data["group"] = group;
    ctx->saved_data["dtype"] = x.scalar_type();
    return x.scalar_type() == at::kHalf ? x.to(at::kFloat) : x.view_as(x);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 const torch::autograd::variable_list& grads) {
    auto* group = reinterpret_cast<comm::ProcessGroup*>(ctx->saved_data["group"].toInt());
    const at::ScalarType dtype = ctx->saved_data["dtype"].toScalarType();
    return {PendingSum(*group, grads[0], dtype).wait(), at::Tensor()};
  }
};

/// Marks and indexes the tokens in a rank's vocabulary slice.
struct LocalTokens {
  at::Tensor is_absent;  ///< bool
  at::Tensor index;      ///< within the slice; 0 if absent
};

LocalTokens local_tokens(const at::Tensor& tokens, std::int64_t first, std::int64_t count) {
  const at::Tensor index = tokens - first;
  const at::Tensor is_absent = index.lt(0).logical_or(index.ge(count));
  return {.is_absent = is_absent, .index = index.masked_fill(is_absent, 0)};
}

class SplitCrossEntropy : public torch::autograd::Function<SplitCrossEntropy> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& logits,
                            const at::Tensor& targets, std::int64_t group_address,
                            std::int64_t first) {
    model::warm_up_vector_math();
    auto& group = *reinterpret_cast<comm::ProcessGroup*>(group_address);
    const at::Tensor largest = logits.amax(1);  // (rows)
    group.all_reduce(largest, comm::ReduceOp::max).wait();

    const at::Tensor shifted = logits - largest.unsqueeze(1);  // (rows, V/tp)
    const LocalTokens local = local_tokens(targets, first, logits.size(1));
    // Sum of exponentials and the target's logit, stacked for one all_reduce.
    const at::Tensor sums = at::empty({2, logits.size(0)}, logits.options());
    sums[1].copy_(shifted.gather(1, local.index.unsqueeze(1)).squeeze(1));
    sums[1].masked_fill_(local.is_absent, 0);
    const at::Tensor probabilities = shifted.exp_();  // in the memory of `shifted`
    sums[0].copy_(probabilities.sum(1));
    group.all_reduce(sums).wait();

    probabilities.div_(sums[0].unsqueeze(1));
    ctx->save_for_backward({probabilities, local.index, local.is_absent});
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

class GroupTensorAxis final : public model::TensorAxis {
 public:
  explicit GroupTensorAxis(const mesh::MeshGroups& groups)
      : axis_{.group = groups.along(mesh::Axis::tp)} {
    for (comm::ProcessGroup* group : groups.tensor_subgroups()) {
      subgroups_.push_back({.group = *group, .shares_heads = true});
      // Ranks of a multi-rank subgroup share a head.
      if (group->size() > 1) axis_.shares_heads = true;
    }
  }

  [[nodiscard]] model::ColumnSplit column_split(const at::Tensor& x,
                                                const at::Tensor& weight) override {
    const std::int64_t width = x.size(-1);
    const model::ColumnSplit split =
        parallel::column_split(axis_, x.reshape({1, -1, width}), weight);
    return {.product = split.product, .x = split.x.view(x.sizes())};
  }

  [[nodiscard]] at::Tensor row_split(const at::Tensor& x, const at::Tensor& weight) override {
    return parallel::row_split(axis_, x, weight);
  }

  [[nodiscard]] at::Tensor column_split_within(std::size_t subgroup, const at::Tensor& x,
                                               const at::Tensor& weight) override {
    const ProductSplit& split = subgroups_.at(subgroup);
    if (split.group.size() == 1) return TensorAxis::column_split_within(subgroup, x, weight);
    return parallel::column_split(split, x, weight).product;
  }

  [[nodiscard]] at::Tensor reduce_within(std::size_t subgroup, const at::Tensor& partial) override {
    comm::ProcessGroup& group = subgroups_.at(subgroup).group;
    return group.size() == 1 ? partial : parallel::reduce(group, partial, partial.scalar_type());
  }

  [[nodiscard]] at::Tensor replicated(const at::Tensor& x) override {
    return ReplicateFunction::apply(x, reinterpret_cast<std::int64_t>(&axis_.group));
  }

  [[nodiscard]] at::Tensor reduce(const at::Tensor& partial) override {
    return parallel::reduce(axis_.group, partial, partial.scalar_type());
  }

  [[nodiscard]] at::Tensor embedding(const at::Tensor& weight, const at::Tensor& ids,
                                     std::int64_t first) override {
    return split_embedding(axis_.group, weight, ids, first);
  }

  [[nodiscard]] at::Tensor cross_entropy(const at::Tensor& logits, const at::Tensor& targets,
                                         std::int64_t first) override {
    return split_cross_entropy(axis_.group, logits, targets, first);
  }

  [[nodiscard]] std::int64_t index() const override { return axis_.group.rank(); }
  [[nodiscard]] std::int64_t size() const override { return axis_.group.size(); }

 private:
  ProductSplit axis_;
  std::vector<ProductSplit> subgroups_;
};

}  // namespace

model::ColumnSplit column_split(const ProductSplit& split, const at::Tensor& x,
                                const at::Tensor& weight) {
  const auto outputs = ColumnSplitFunction::apply(
      x, weight, reinterpret_cast<std::int64_t>(&split.group), split.shares_heads);
  return {.product = outputs[0], .x = outputs[1]};
}

at::Tensor reduce(comm::ProcessGroup& group, const at::Tensor& partial, at::ScalarType result) {
  return ReduceFunction::apply(partial, reinterpret_cast<std::int64_t>(&group), result);
}

at::Tensor row_split(const ProductSplit& split, const at::Tensor& x, const at::Tensor& weight) {
  const at::Tensor products = partial_product(x, weight, split.shares_heads);  // (h, rows, D)
  const at::Tensor partial = products.sum(0, /*keepdim=*/false, reduction_dtype(x.scalar_type()));
  return reduce(split.group, partial, x.scalar_type());
}

at::Tensor split_embedding(comm::ProcessGroup& group, const at::Tensor& weight,
                           const at::Tensor& ids, std::int64_t first) {
  const LocalTokens local = local_tokens(ids, first, weight.size(0));
  // Widened, since a row's gradient accumulates over all occurrences of its token.
  const at::Tensor rows = at::embedding(model::widened(weight), local.index)
                              .masked_fill(local.is_absent.unsqueeze(-1), 0);  // (..., D)
  return model::widened(reduce(group, rows, weight.scalar_type()));
}

at::Tensor split_cross_entropy(comm::ProcessGroup& group, const at::Tensor& logits,
                               const at::Tensor& targets, std::int64_t first) {
  return SplitCrossEntropy::apply(logits, targets, reinterpret_cast<std::int64_t>(&group), first);
}

std::unique_ptr<model::TensorAxis> make_tensor_axis(const mesh::MeshGroups& groups) {
  if (groups.mesh().size(mesh::Axis::tp) == 1) return std::make_unique<model::TensorAxis>();
  return std::make_unique<GroupTensorAxis>(groups);
}

}  // namespace dtrain::parallel
