#include "dtrain/optim/sgd.h"

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <torch/library.h>

#include "dtrain/device/operator.h"
#include "dtrain/optim/update_rules.h"

namespace dtrain::optim {
namespace {

// learning_rate () float64, may_update () bool; no buffer: no momentum.
void sgd_on_cpu(const at::Tensor& weight, const at::Tensor& gradient,
                const std::optional<at::Tensor>& buffer, const at::Tensor& learning_rate,
                const at::Tensor& may_update, double momentum, double weight_decay) {
  if (!*may_update.const_data_ptr<bool>()) return;
  AT_DISPATCH_FLOATING_TYPES(weight.scalar_type(), "sgd", [&] {
    const SgdFactors<scalar_t> factors{
        .decay = static_cast<scalar_t>(weight_decay),
        .momentum = static_cast<scalar_t>(momentum),
        .rate = static_cast<scalar_t>(*learning_rate.const_data_ptr<double>())};
    auto* weights = weight.mutable_data_ptr<scalar_t>();
    const auto* gradients = gradient.const_data_ptr<scalar_t>();
    auto* buffers = buffer ? buffer->mutable_data_ptr<scalar_t>() : nullptr;
    at::parallel_for(0, weight.numel(), kUpdateGrain, [&](std::int64_t begin, std::int64_t end) {
      update_sgd(SgdElements<scalar_t>{end - begin, weights + begin, gradients + begin,
                                       buffers == nullptr ? nullptr : buffers + begin},
                 factors);
    });
  });
}

TORCH_LIBRARY_FRAGMENT(dtrain, operators) {
  operators.def(
      "sgd_(Tensor(a!) weight, Tensor gradient, Tensor(b!)? buffer, Tensor learning_rate, Tensor "
      "may_update, float momentum, float weight_decay) -> ()");
}
TORCH_LIBRARY_IMPL(dtrain, CPU, kernels) { kernels.impl("sgd_", sgd_on_cpu); }

}  // namespace

Sgd::Sgd(const OptimizerShard& shard, const SgdOptions& options)
    : Optimizer(update_groups(shard, options.weight_decay), shard.device), options_(options) {
  if (options.momentum != 0) momentum_ = state_arena(shard);
}

void Sgd::update(const UpdateGroup& group, const param::Arena& parameters,
                 const param::Arena& gradients, const StepInputs& inputs) {
  static const device::Operator<void(const at::Tensor&, const at::Tensor&,
                                     const std::optional<at::Tensor>&, const at::Tensor&,
                                     const at::Tensor&, double, double)>
      kSgd("dtrain::sgd_");
  const auto values = [&](const param::Arena& arena) { return inputs.values(arena, group.range); };
  kSgd(values(parameters), values(gradients),
       momentum_ ? std::optional(values(*momentum_)) : std::nullopt, inputs.learning_rate,
       inputs.may_update, options_.momentum, group.weight_decay);
}

std::vector<NamedArena> Sgd::state() const {
  if (!momentum_) return {};
  return {{"momentum_buffer", &*momentum_}};
}

}  // namespace dtrain::optim
