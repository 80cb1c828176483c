#include "toy/blocks.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "dtrain/model/dropout.h"

namespace dtrain::model::toy {

at::Tensor scales(const Sizes& sizes) {
  const at::Tensor of_group = at::arange(sizes.groups, at::kFloat) / sizes.groups + 1;
  return of_group.unsqueeze(1).expand({sizes.groups, sizes.hidden / sizes.groups}).contiguous();
}

at::Tensor ToyEmbedding::forward(const at::Tensor& ids, const BlockContext& context) {
  return at::embedding(context.use(ids_[0]), ids);
}

BlockMemory ToyEmbedding::memory(const BatchShape& shape) const {
  const std::int64_t output = shape.rows() * part_.whole.width * size_of(shape.dtype);
  const std::int64_t weight = part_.whole.vocab * part_.whole.width * size_of(shape.dtype);
  return {.output = output,
          .saved = 0,
          .forward = output,
          .forward_without_graph = output,
          .backward = weight};
}

at::Tensor ToyLevel::forward(const at::Tensor& x, const BlockContext& context) {
  const std::int64_t batch = x.size(0);
  const std::int64_t length = x.size(1);
  const at::Tensor in = context.use(ids_[0]).unsqueeze(0);                     // (1, H/tp, D)
  const at::Tensor product = context.tensor_axis.column_split(x, in).product;  // (1, B*T, H/tp)
  at::Tensor hidden = (product + context.use(ids_[1])).relu();
  if (context.training && part_.whole.dropout > 0) {
    const DropoutOffsets place{.seed = context.seed,
                               .level = level_,
                               .first_sample = context.first_sample,
                               .first_neuron = part_.first};
    hidden = dropout(hidden.view({1, batch, length, part_.hidden}), part_.whole.dropout, place)
                 .view(product.sizes());
  }
  const at::Tensor scale =
      scales(part_.whole).view({-1}).narrow(0, part_.first, part_.hidden).to(x.scalar_type());
  const at::Tensor out = context.use(ids_[2]).unsqueeze(0);  // (1, H/tp, D)
  const at::Tensor y = context.tensor_axis.row_split(hidden * scale, out).view(x.sizes());
  const at::Tensor sum = x + y;  // (B, T, D)
  context.report(fmt::format("act.layer{}.out", level_), sum);
  return sum;
}

BlockMemory ToyLevel::memory(const BatchShape& shape) const {
  const std::int64_t hidden = shape.rows() * part_.hidden * size_of(shape.dtype);
  const std::int64_t row = shape.rows() * part_.whole.width * size_of(shape.dtype);
  return {.output = row,
          .saved = 3 * hidden,
          .forward = 4 * hidden + 2 * row,
          .forward_without_graph = 3 * hidden + 2 * row,
          .backward = 5 * hidden + 2 * row};
}

at::Tensor ToyHead::forward(const at::Tensor& x, const BlockContext& context) {
  const at::Tensor logits = widened(at::matmul(x, context.use(ids_[0])));  // (B, T, V)
  context.report("logits", logits);
  return TensorAxis()
      .cross_entropy(logits.view({-1, part_.whole.vocab}), context.targets.reshape(-1), 0)
      .view(context.targets.sizes());
}

BlockMemory ToyHead::memory(const BatchShape& shape) const {
  const std::int64_t losses = shape.rows() * std::max<std::int64_t>(4, size_of(shape.dtype));
  const std::int64_t logits = losses * part_.whole.vocab;
  return {.output = losses,
          .saved = logits,
          .forward = 2 * logits + losses,
          .forward_without_graph = 2 * logits + losses,
          .backward = 3 * logits};
}

}  // namespace dtrain::model::toy
