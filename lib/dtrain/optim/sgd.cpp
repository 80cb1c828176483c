#include "dtrain/optim/sgd.h"

#include <ATen/ops/_fused_sgd.h>

namespace dtrain::optim {

Sgd::Sgd(const OptimizerShard& shard, const SgdOptions& options)
    : Optimizer(update_groups(shard, options.weight_decay, options.frozen)), options_(options) {
  if (options.momentum != 0) momentum_ = state_arena(shard);
}

void Sgd::update(const UpdateGroup& group, const param::Arena& parameters,
                 const param::Arena& gradients, double learning_rate) {
  std::vector<at::Tensor> momentum;
  if (momentum_) momentum.push_back(momentum_->slice(group.range));
  at::_fused_sgd_({parameters.slice(group.range)}, {gradients.slice(group.range)}, momentum,
                  group.weight_decay, options_.momentum, learning_rate, /*dampening=*/0,
                  /*nesterov=*/false, /*maximize=*/false, /*is_first_step=*/false);
}

std::vector<NamedArena> Sgd::state() const {
  if (!momentum_) return {};
  return {{"momentum_buffer", &*momentum_}};
}

}  // namespace dtrain::optim
