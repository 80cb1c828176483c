#include "dtrain/optim/internal/optimizer.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

namespace dtrain::optim {
namespace {

std::vector<UpdateGroup> update_groups(const OptimizerShard& shard, double weight_decay) {
  std::vector<UpdateGroup> groups;
  const param::ArenaLayout& layout = shard.layout;
  for (const param::ElementRange part : layout.ranges(param::Elements::trained, shard.shard)) {
    const std::size_t first_of_part = groups.size();
    for (const param::ParameterId id : layout.parameters()) {
      const param::ElementRange range = intersection(layout.range(id), part);
      if (range.is_empty()) continue;
      const double decay = shard.specs[id].decay ? weight_decay : 0.0;
      // Padding between parameters is zero in every arena, so one call may span it.
      const bool joins = groups.size() > first_of_part && groups.back().weight_decay == decay &&
                         range.begin - groups.back().range.end < param::kArenaAlignment;
      if (joins) {
        groups.back().range.end = range.end;
      } else {
        groups.push_back({range, decay});
      }
    }
  }
  return groups;
}

// Splits the groups into ranges of at most `size` elements, a multiple of the alignment.
std::vector<UpdateGroup> cut(const std::vector<UpdateGroup>& groups, std::int64_t size) {
  std::vector<UpdateGroup> parts;
  for (const UpdateGroup& group : groups) {
    for (std::int64_t begin = group.range.begin; begin < group.range.end; begin += size) {
      parts.push_back({{begin, std::min(begin + size, group.range.end)}, group.weight_decay});
    }
  }
  return parts;
}

}  // namespace

Optimizer::Optimizer(const OptimizerShard& shard, double weight_decay)
    : groups_(update_groups(shard, weight_decay)),
      num_updates_(at::zeros({1}, at::TensorOptions(shard.device).dtype(at::kFloat))),
      learning_rate_(at::zeros({}, at::TensorOptions(shard.device).dtype(at::kDouble))) {}

void Optimizer::step(const param::Arena& parameters, const param::Arena& gradients,
                     double learning_rate, const at::Tensor& may_update, UpdateWindow* window,
                     const std::function<void(std::int64_t end)>& updated_to) {
  if (may_update.is_cpu() && !*may_update.const_data_ptr<bool>()) return;
  const at::NoGradGuard no_grad;
  num_updates_.add_(may_update);
  learning_rate_.fill_(learning_rate);
  const std::vector<UpdateGroup> parts =
      window == nullptr ? groups_ : cut(groups_, kWindowElements);
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const param::ElementRange range = parts[i].range;
    const bool is_last = i + 1 == parts.size();
    if (window != nullptr) {
      window->before(range, is_last ? param::ElementRange{} : parts[i + 1].range);
    }
    update(parts[i], parameters, gradients, {learning_rate_, may_update, window});
    if (window != nullptr) window->after(range);
    if (updated_to) updated_to(range.end);
  }
}

}  // namespace dtrain::optim
