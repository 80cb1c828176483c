#include "dtrain/optim/adamw.h"

#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <utility>

namespace dtrain::optim {

AdamW::AdamW(const param::ArenaLayout& layout, std::span<const param::ParameterSpec> specs,
             at::ScalarType dtype, const param::ArenaAllocator& allocate, AdamWOptions options)
    : options_(std::move(options)),
      first_moment_(layout, dtype, allocate),
      second_moment_(layout, dtype, allocate),
      num_updates_(at::zeros({1}, at::TensorOptions().dtype(at::kFloat))) {
  for (param::ParameterId id = 0; id < layout.num_parameters(); ++id) {
    if (std::find(options_.frozen.begin(), options_.frozen.end(), id) != options_.frozen.end())
      continue;
    const double decay = specs[static_cast<std::size_t>(id)].decay ? options_.weight_decay : 0.0;
    const param::ElementRange range = layout.range(id);
    // Padding between neighbours is zero in every arena, so that one call may run across it.
    const bool joins = !groups_.empty() && groups_.back().weight_decay == decay &&
                       range.begin - groups_.back().range.end < param::kArenaAlignment;
    if (joins) {
      groups_.back().range.end = range.end;
    } else {
      groups_.push_back({range, decay});
    }
  }
}

void AdamW::step(const param::Arena& parameters, const param::Arena& gradients,
                 double learning_rate) {
  const at::NoGradGuard no_grad;
  num_updates_.add_(1);
  for (const Group& group : groups_) {
    at::_fused_adamw_({parameters.slice(group.range)}, {gradients.slice(group.range)},
                      {first_moment_.slice(group.range)}, {second_moment_.slice(group.range)}, {},
                      {num_updates_.squeeze(0)}, learning_rate, options_.beta1, options_.beta2,
                      group.weight_decay, options_.eps, /*amsgrad=*/false, /*maximize=*/false);
  }
}

}  // namespace dtrain::optim
