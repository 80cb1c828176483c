#include "dtrain/optim/adamw.h"

#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/zeros.h>

namespace dtrain::optim {

AdamW::AdamW(const OptimizerShard& shard, const AdamWOptions& options)
    : options_(options),
      groups_(update_groups(shard, options.weight_decay, options.frozen)),
      first_moment_(state_arena(shard)),
      second_moment_(state_arena(shard)),
      num_updates_(at::zeros({1}, at::TensorOptions().dtype(at::kFloat))) {}

void AdamW::step(const param::Arena& parameters, const param::Arena& gradients,
                 double learning_rate) {
  const at::NoGradGuard no_grad;
  num_updates_.add_(1);
  for (const UpdateGroup& group : groups_) {
    at::_fused_adamw_({parameters.slice(group.range)}, {gradients.slice(group.range)},
                      {first_moment_.slice(group.range)}, {second_moment_.slice(group.range)}, {},
                      {num_updates_.squeeze(0)}, learning_rate, options_.beta1, options_.beta2,
                      group.weight_decay, options_.eps, /*amsgrad=*/false, /*maximize=*/false);
  }
}

}  // namespace dtrain::optim
