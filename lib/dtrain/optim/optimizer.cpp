#include "dtrain/optim/optimizer.h"

#include <algorithm>

namespace dtrain::optim {

std::vector<UpdateGroup> update_groups(const OptimizerShard& shard, double weight_decay,
                                       std::span<const param::ParameterId> frozen) {
  std::vector<UpdateGroup> groups;
  const param::ArenaLayout& layout = shard.layout;
  for (const param::ElementRange part : layout.owned_by(shard.shard)) {
    const std::size_t first_of_part = groups.size();
    for (param::ParameterId id = 0; id < layout.num_parameters(); ++id) {
      const param::ElementRange range = common(layout.range(id), part);
      const bool is_frozen = std::find(frozen.begin(), frozen.end(), id) != frozen.end();
      if (range.is_empty() || is_frozen) continue;
      const double decay = shard.specs[static_cast<std::size_t>(id)].decay ? weight_decay : 0.0;
      // Padding between neighbours is zero in every arena, so that one call may run across it.
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

param::Arena state_arena(const OptimizerShard& shard) {
  return param::Arena::of_shard(shard.layout, shard.shard, shard.dtype, shard.allocate);
}

}  // namespace dtrain::optim
