#include "dtrain/parallel/recompute.h"

#include <algorithm>

namespace dtrain::parallel {

const RecomputeGroup* RecomputePlan::group_of(std::int64_t block) const {
  const auto found = std::find_if(groups.begin(), groups.end(), [&](const RecomputeGroup& group) {
    return group.begin <= block && block < group.end;
  });
  return found == groups.end() ? nullptr : &*found;
}

std::int64_t RecomputePlan::num_extra_forwards() const {
  std::int64_t count = 0;
  for (const RecomputeGroup& group : groups) count += 2 * (group.end - group.begin) - 1;
  return count;
}

RecomputePlan recompute_lowest_levels(std::int64_t num_blocks, std::int64_t count) {
  RecomputePlan plan;
  const std::int64_t end = std::min(count, num_blocks - 2) + 1;
  for (std::int64_t block = 1; block < end; ++block) plan.groups.push_back({block, block + 1});
  return plan;
}

RecomputePlan recompute_in_groups(std::int64_t num_blocks, std::int64_t size) {
  RecomputePlan plan;
  for (std::int64_t block = 1; block + 1 < num_blocks; block += size) {
    plan.groups.push_back({block, std::min(block + size, num_blocks - 1)});
  }
  return plan;
}

}  // namespace dtrain::parallel
