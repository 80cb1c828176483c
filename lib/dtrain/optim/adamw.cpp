#include "dtrain/optim/adamw.h"

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>

#include <cmath>

#include "dtrain/optim/update_rules.h"

namespace dtrain::optim {
namespace {

// base^exponent by multiplications alone, which every CPU rounds alike; std::pow has variants for
// CPUs with fused multiply-add.
double power(double base, std::int64_t exponent) {
  long double result = 1;
  for (long double square = base; exponent > 0; exponent /= 2, square *= square) {
    if (exponent % 2 == 1) result *= square;
  }
  return static_cast<double>(result);
}

// Computed in float64, whatever the elements are, and rounded once.
template <typename T>
AdamWFactors<T> factors_of(const AdamWOptions& options, double weight_decay, double learning_rate,
                           std::int64_t step) {
  const double first_correction = 1 - power(options.beta1, step);
  const double second_correction = 1 - power(options.beta2, step);
  return {.keep = static_cast<T>(1 - learning_rate * weight_decay),
          .beta1 = static_cast<T>(options.beta1),
          .first_gain = static_cast<T>(1 - options.beta1),
          .beta2 = static_cast<T>(options.beta2),
          .second_gain = static_cast<T>(1 - options.beta2),
          .root_scale = static_cast<T>(1 / std::sqrt(second_correction)),
          .eps = static_cast<T>(options.eps),
          .rate = static_cast<T>(learning_rate / first_correction)};
}

}  // namespace

AdamW::AdamW(const OptimizerShard& shard, const AdamWOptions& options)
    : Optimizer(update_groups(shard, options.weight_decay, options.frozen)),
      options_(options),
      first_moment_(state_arena(shard)),
      second_moment_(state_arena(shard)) {}

void AdamW::update(const UpdateGroup& group, const param::Arena& parameters,
                   const param::Arena& gradients, double learning_rate) {
  const at::Tensor weight = parameters.slice(group.range);
  const at::Tensor gradient = gradients.slice(group.range);
  const at::Tensor first = first_moment_.slice(group.range);
  const at::Tensor second = second_moment_.slice(group.range);
  const auto step = static_cast<std::int64_t>(*num_updates().const_data_ptr<float>());
  AT_DISPATCH_FLOATING_TYPES(weight.scalar_type(), "adamw", [&] {
    const auto factors = factors_of<scalar_t>(options_, group.weight_decay, learning_rate, step);
    const AdamWElements<scalar_t> all{.count = group.range.size(),
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

}  // namespace dtrain::optim
