#include "dtrain/optim/sgd.h"

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>

#include "dtrain/optim/update_rules.h"

namespace dtrain::optim {

Sgd::Sgd(const OptimizerShard& shard, const SgdOptions& options)
    : Optimizer(update_groups(shard, options.weight_decay, options.frozen)), options_(options) {
  if (options.momentum != 0) momentum_ = state_arena(shard);
}

void Sgd::update(const UpdateGroup& group, const param::Arena& parameters,
                 const param::Arena& gradients, double learning_rate) {
  const at::Tensor weight = parameters.slice(group.range);
  const at::Tensor gradient = gradients.slice(group.range);
  const at::Tensor buffer = momentum_ ? momentum_->slice(group.range) : at::Tensor();
  AT_DISPATCH_FLOATING_TYPES(weight.scalar_type(), "sgd", [&] {
    const SgdFactors<scalar_t> factors{.decay = static_cast<scalar_t>(group.weight_decay),
                                       .momentum = static_cast<scalar_t>(options_.momentum),
                                       .rate = static_cast<scalar_t>(learning_rate)};
    auto* weights = weight.mutable_data_ptr<scalar_t>();
    const auto* gradients_data = gradient.const_data_ptr<scalar_t>();
    auto* buffers = buffer.defined() ? buffer.mutable_data_ptr<scalar_t>() : nullptr;
    at::parallel_for(
        0, group.range.size(), kUpdateGrain, [&](std::int64_t begin, std::int64_t end) {
          update_sgd(SgdElements<scalar_t>{end - begin, weights + begin, gradients_data + begin,
                                           buffers == nullptr ? nullptr : buffers + begin},
                     factors);
        });
  });
}

std::vector<NamedArena> Sgd::state() const {
  if (!momentum_) return {};
  return {{"momentum_buffer", &*momentum_}};
}

}  // namespace dtrain::optim
