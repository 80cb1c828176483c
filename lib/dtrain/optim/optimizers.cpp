#include "dtrain/optim/optimizers.h"

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <torch/library.h>

#include "dtrain/device/operator.h"
#include "dtrain/optim/update_element.h"

namespace dtrain::optim {
namespace {

// num_updates (1) float32, includes this step; learning_rate () float64; may_update () bool.
void adamw_on_cpu(const at::Tensor& weight, const at::Tensor& gradient, const at::Tensor& first,
                  const at::Tensor& second, const at::Tensor& num_updates,
                  const at::Tensor& learning_rate, const at::Tensor& may_update, double beta1,
                  double beta2, double eps, double weight_decay) {
  if (!*may_update.const_data_ptr<bool>()) return;
  const auto step = static_cast<std::int64_t>(*num_updates.const_data_ptr<float>());
  AT_DISPATCH_FLOATING_TYPES(weight.scalar_type(), "adamw", [&] {
    const auto factors = adamw_factors<scalar_t>({beta1, beta2, eps, weight_decay},
                                                 *learning_rate.const_data_ptr<double>(), step);
    const AdamWElements<scalar_t> all{.count = weight.numel(),
                                      .weight = weight.mutable_data_ptr<scalar_t>(),
                                      .gradient = gradient.const_data_ptr<scalar_t>(),
                                      .first_moment = first.mutable_data_ptr<scalar_t>(),
                                      .second_moment = second.mutable_data_ptr<scalar_t>()};
    at::parallel_for(0, all.count, kUpdateGrain, [&](std::int64_t begin, std::int64_t end) {
      update_adamw(AdamWElements<scalar_t>{end - begin, all.weight + begin, all.gradient + begin,
                                           all.first_moment + begin, all.second_moment + begin},
                   factors);
    });
  });
}

// learning_rate () float64; may_update () bool; buffer: empty without momentum.
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
      "adamw_(Tensor(a!) weight, Tensor gradient, Tensor(b!) first_moment, Tensor(c!) "
      "second_moment, Tensor num_updates, Tensor learning_rate, Tensor may_update, float beta1, "
      "float beta2, float eps, float weight_decay) -> ()");
  operators.def(
      "sgd_(Tensor(a!) weight, Tensor gradient, Tensor(b!)? buffer, Tensor learning_rate, Tensor "
      "may_update, float momentum, float weight_decay) -> ()");
}
TORCH_LIBRARY_IMPL(dtrain, CPU, kernels) {
  kernels.impl("adamw_", adamw_on_cpu);
  kernels.impl("sgd_", sgd_on_cpu);
}

}  // namespace

AdamW::AdamW(const OptimizerShard& shard, const AdamWOptions& options)
    : Optimizer(shard, options.weight_decay),
      options_(options),
      first_moment_(shard.state_arena()),
      second_moment_(shard.state_arena()) {}

void AdamW::update(const UpdateGroup& group, const param::Arena& parameters,
                   const param::Arena& gradients, const StepInputs& inputs) {
  static const device::Operator<decltype(adamw_on_cpu)> kAdamW("dtrain::adamw_");
  const auto values = [&](const param::Arena& arena) { return inputs.values(arena, group.range); };
  kAdamW(values(parameters), values(gradients), values(first_moment_), values(second_moment_),
         num_updates(), inputs.learning_rate, inputs.may_update, options_.beta1, options_.beta2,
         options_.eps, group.weight_decay);
}

Sgd::Sgd(const OptimizerShard& shard, const SgdOptions& options)
    : Optimizer(shard, options.weight_decay), options_(options) {
  if (options.momentum != 0) momentum_ = shard.state_arena();
}

void Sgd::update(const UpdateGroup& group, const param::Arena& parameters,
                 const param::Arena& gradients, const StepInputs& inputs) {
  static const device::Operator<decltype(sgd_on_cpu)> kSgd("dtrain::sgd_");
  const auto values = [&](const param::Arena& arena) { return inputs.values(arena, group.range); };
  kSgd(values(parameters), values(gradients),
       momentum_ ? std::optional(values(*momentum_)) : std::nullopt, inputs.learning_rate,
       inputs.may_update, options_.momentum, group.weight_decay);
}

std::vector<NamedArena> Sgd::state() const {
  if (!momentum_) return {};
  return {{"momentum_buffer", &*momentum_}};
}

std::unique_ptr<Optimizer> make_optimizer(const OptimizerShard& shard,
                                          const OptimizerOptions& options) {
  if (const auto* sgd = std::get_if<SgdOptions>(&options)) {
    return std::make_unique<Sgd>(shard, *sgd);
  }
  return std::make_unique<AdamW>(shard, std::get<AdamWOptions>(options));
}

std::int64_t values_per_element(const OptimizerOptions& options) {
  const auto* sgd = std::get_if<SgdOptions>(&options);
  if (sgd == nullptr) return 2;  // both moments
  return sgd->momentum == 0 ? 0 : 1;
}

std::int64_t state_bytes(const OptimizerOptions& options, const param::ArenaLayout& layout,
                         at::ScalarType dtype) {
  return values_per_element(options) * param::Arena::bytes_of_trained_shard(layout, dtype);
}

}  // namespace dtrain::optim
