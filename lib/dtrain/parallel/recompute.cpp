#include "dtrain/parallel/recompute.h"

#include <algorithm>

namespace dtrain::parallel {

const RecomputeGroup* RecomputePlan::group_of(model::BlockId block) const {
  const auto found = std::find_if(groups.begin(), groups.end(), [&](const RecomputeGroup& group) {
    return group.begin <= block && block < group.end;
  });
  return found == groups.end() ? nullptr : &*found;
}

double RecomputePlan::extra_flops_per_token(const model::Model& model) const {
  double extra = 0;
  for (const model::BlockCost& cost : model.costs) extra += cost.recomputed_flops_per_token;
  for (const RecomputeGroup& group : groups) {
    for (model::BlockId block = group.begin; block < group.end; ++block) {
      const double flops = model.costs[block].forward_flops_per_token;
      extra += block + 1 < group.end ? 2 * flops : flops;
    }
  }
  return extra;
}

RecomputePlan recompute_lowest_layers(std::span<const model::BlockRange> layers,
                                      std::int64_t count) {
  RecomputePlan plan = recompute_in_groups(layers, 1);
  if (count < std::ssize(plan.groups)) {
    plan.groups.resize(static_cast<std::size_t>(count));
  }
  return plan;
}

RecomputePlan recompute_in_groups(std::span<const model::BlockRange> layers, std::int64_t size) {
  RecomputePlan plan;
  for (const model::BlockRange& run : layers) {
    for (model::BlockId block = run.begin; block < run.end; block = block + size) {
      plan.groups.push_back({block, std::min(block + size, run.end)});
    }
  }
  return plan;
}

}  // namespace dtrain::parallel
