#include "dtrain/model/model.h"

#include <utility>

#include "dtrain/base/error.h"

namespace dtrain::model {

std::unique_ptr<Model> extract_blocks(std::unique_ptr<Model> whole,
                                      std::span<const BlockRange> ranges) {
  DTRAIN_CHECK(!ranges.empty());
  base::IndexedVector<BlockId, std::unique_ptr<Block>> blocks;
  base::IndexedVector<BlockId, BlockCost> costs;
  base::IndexedVector<param::ParameterId, bool> is_used(whole->parameters.size());
  for (const BlockRange& range : ranges) {
    for (const BlockId block : range.ids()) {
      for (const param::ParameterId id : whole->blocks[block]->parameters()) is_used[id] = true;
      blocks.push_back(std::move(whole->blocks[block]));
      costs.push_back(whole->costs[block]);
    }
  }
  whole->takes_tokens = ranges.front().begin == BlockId(0);
  whole->gives_losses = ranges.back().end == whole->blocks.end_id();
  whole->blocks = std::move(blocks);
  whole->costs = std::move(costs);
  for (const param::ParameterId id : is_used.ids()) {
    if (!is_used[id]) whole->parameters[id] = whole->parameters[id].not_held();
  }
  return whole;
}

}  // namespace dtrain::model
