// CUDA kernels of our operators, registered under the operators' names.

#include <ATen/Dispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include <optional>

#include "cuda/bodies.h"
#include "cuda/launch.h"
#include "dtrain/base/error.h"

namespace dtrain::cuda {
namespace {

// Kernels run on the current stream of the tensor's device.
class Place {
 public:
  explicit Place(const at::Tensor& tensor) : guard_(tensor.device()) {}
  [[nodiscard]] cudaStream_t stream() const { return c10::cuda::getCurrentCUDAStream().stream(); }

 private:
  c10::cuda::CUDAGuard guard_;
};

// Kernels that divide indices support 32-bit ones only.
void check_indices(std::int64_t size) { DTRAIN_CHECK(size >> 32 == 0, "{} indices", size); }

at::Tensor drop(const at::Tensor& x, double probability, std::int64_t seed, std::int64_t level,
                const at::Tensor& first_sample, std::int64_t first_neuron) {
  const Place place(x);
  const model::DropoutRows rows{.samples = x.size(1),
                                .positions = x.size(2),
                                .neurons = x.size(3),
                                .level = level,
                                .first_sample = first_sample.const_data_ptr<std::int64_t>(),
                                .first_neuron = first_neuron};
  at::Tensor out = at::empty_like(x);
  if (x.numel() == 0) return out;
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kBFloat16, at::kHalf, x.scalar_type(), "dropout", [&] {
    const DropoutBody<scalar_t> body{
        .rows = rows,
        .num_rows = x.numel() / rows.neurons,
        .key = base::philox_key(static_cast<std::uint64_t>(seed), base::RandomPurpose::dropout),
        .rule = model::drop_rule<scalar_t>(probability),
        .in = x.const_data_ptr<scalar_t>(),
        .out = out.mutable_data_ptr<scalar_t>()};
    check_indices(body.size());
    launch_dropout(body, place.stream());
  });
  return out;
}

at::Tensor rotate(const at::Tensor& v, const at::Tensor& table, double direction) {
  const Place place(v);
  at::Tensor out = at::empty_like(v);
  if (v.numel() == 0) return out;
  const std::int64_t length = v.size(-2) * v.size(-1);
  AT_DISPATCH_REDUCED_FLOATING_TYPES(v.scalar_type(), "rope_rotate", [&] {
    const RopeBody<scalar_t> body{.in = v.const_data_ptr<scalar_t>(),
                                  .out = out.mutable_data_ptr<scalar_t>(),
                                  .table = table.const_data_ptr<float>(),
                                  .rows = v.numel() / length,
                                  .length = length,
                                  .direction = static_cast<float>(direction)};
    check_indices(body.size());
    launch(body, place.stream());
  });
  return out;
}

at::Tensor mirror(const at::Tensor& matrices) {
  const Place place(matrices);
  at::Tensor out = at::empty_like(matrices);
  AT_DISPATCH_FLOATING_TYPES_AND2(
      at::kBFloat16, at::kHalf, matrices.scalar_type(), "mirror_lower", [&] {
        launch_mirror_lower(matrices.const_data_ptr<scalar_t>(), out.mutable_data_ptr<scalar_t>(),
                            matrices.size(0), matrices.size(1), place.stream());
      });
  return out;
}

void update_adamw(const at::Tensor& weight, const at::Tensor& gradient, const at::Tensor& first,
                  const at::Tensor& second, const at::Tensor& num_updates,
                  const at::Tensor& learning_rate, const at::Tensor& may_update, double beta1,
                  double beta2, double eps, double weight_decay) {
  const Place place(weight);
  AT_DISPATCH_FLOATING_TYPES(weight.scalar_type(), "adamw", [&] {
    launch(AdamWBody<scalar_t>{.settings = {beta1, beta2, eps, weight_decay},
                               .num_updates = num_updates.const_data_ptr<float>(),
                               .learning_rate = learning_rate.const_data_ptr<double>(),
                               .may_update = may_update.const_data_ptr<bool>(),
                               .count = weight.numel(),
                               .weight = weight.mutable_data_ptr<scalar_t>(),
                               .gradient = gradient.const_data_ptr<scalar_t>(),
                               .first = first.mutable_data_ptr<scalar_t>(),
                               .second = second.mutable_data_ptr<scalar_t>()},
           place.stream());
  });
}

void update_sgd(const at::Tensor& weight, const at::Tensor& gradient,
                const std::optional<at::Tensor>& buffer, const at::Tensor& learning_rate,
                const at::Tensor& may_update, double momentum, double weight_decay) {
  const Place place(weight);
  AT_DISPATCH_FLOATING_TYPES(weight.scalar_type(), "sgd", [&] {
    launch(SgdBody<scalar_t>{.momentum = momentum,
                             .weight_decay = weight_decay,
                             .learning_rate = learning_rate.const_data_ptr<double>(),
                             .may_update = may_update.const_data_ptr<bool>(),
                             .count = weight.numel(),
                             .weight = weight.mutable_data_ptr<scalar_t>(),
                             .gradient = gradient.const_data_ptr<scalar_t>(),
                             .buffer = buffer ? buffer->mutable_data_ptr<scalar_t>() : nullptr},
           place.stream());
  });
}

void norm_sums(const at::Tensor& values, const at::Tensor& blocks, const at::Tensor& sums) {
  const Place place(values);
  const auto* table =
      reinterpret_cast<const optim::NormBlock*>(blocks.const_data_ptr<std::int64_t>());
  AT_DISPATCH_FLOATING_TYPES(values.scalar_type(), "norm_sums", [&] {
    launch_norm_sums(values.const_data_ptr<scalar_t>(), table, blocks.size(0),
                     sums.mutable_data_ptr<double>(), place.stream());
  });
}

at::Tensor norm_squares(const at::Tensor& sums, const at::Tensor& blocks, const at::Tensor& ends) {
  const Place place(sums);
  at::Tensor squares = at::empty(ends.sizes(), sums.options());
  launch_norm_squares(sums.const_data_ptr<double>(),
                      reinterpret_cast<const SlotRange*>(blocks.const_data_ptr<std::int64_t>()),
                      ends.const_data_ptr<std::int64_t>(), ends.numel(),
                      squares.mutable_data_ptr<double>(), place.stream());
  return squares;
}

void scale(const at::Tensor& values, const at::Tensor& factor) {
  const Place place(values);
  DTRAIN_CHECK(values.is_contiguous());
  AT_DISPATCH_FLOATING_TYPES(values.scalar_type(), "scale", [&] {
    launch(ScaleBody<scalar_t>{.factor = factor.const_data_ptr<double>(),
                               .count = values.numel(),
                               .values = values.mutable_data_ptr<scalar_t>()},
           place.stream());
  });
}

at::Tensor ordered_sum(const at::Tensor& values) {
  const Place place(values);
  const at::Tensor rows = values.contiguous();
  at::Tensor sums = at::empty(rows.sizes().slice(0, static_cast<std::size_t>(rows.dim() - 1)),
                              rows.options().dtype(at::kDouble));
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kBFloat16, at::kHalf, rows.scalar_type(), "ordered_sum", [&] {
    launch_ordered_sum(rows.const_data_ptr<scalar_t>(), sums.numel(), rows.size(-1),
                       sums.mutable_data_ptr<double>(), place.stream());
  });
  return sums;
}

TORCH_LIBRARY_IMPL(dtrain, CUDA, kernels) {
  kernels.impl("dropout", drop);
  kernels.impl("rope_turn", rotate);
  kernels.impl("mirror_lower", mirror);
  kernels.impl("adamw_", update_adamw);
  kernels.impl("sgd_", update_sgd);
  kernels.impl("norm_sums_", norm_sums);
  kernels.impl("norm_squares", norm_squares);
  kernels.impl("scale_", scale);
  kernels.impl("ordered_sum", ordered_sum);
}

}  // namespace
}  // namespace dtrain::cuda
