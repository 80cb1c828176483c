#include "dtrain/optim/adamw.h"

#include <ATen/ops/_fused_adamw.h>

namespace dtrain::optim {

AdamW::AdamW(const OptimizerShard& shard, const AdamWOptions& options)
    : Optimizer(update_groups(shard, options.weight_decay, options.frozen)),
      options_(options),
      first_moment_(state_arena(shard)),
      second_moment_(state_arena(shard)) {}

void AdamW::update(const UpdateGroup& group, const param::Arena& parameters,
                   const param::Arena& gradients, double learning_rate) {
  at::_fused_adamw_({parameters.slice(group.range)}, {gradients.slice(group.range)},
                    {first_moment_.slice(group.range)}, {second_moment_.slice(group.range)}, {},
                    {num_updates().squeeze(0)}, learning_rate, options_.beta1, options_.beta2,
                    group.weight_decay, options_.eps, /*amsgrad=*/false, /*maximize=*/false);
}

}  // namespace dtrain::optim
