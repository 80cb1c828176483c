#include "dtrain/model/part.h"

#include <set>

#include "dtrain/base/check.h"

namespace dtrain::model {

ModelPart take_part(std::unique_ptr<Model> whole, std::span<const BlockRange> ranges) {
  DTRAIN_CHECK(!ranges.empty());
  ModelPart part{.model = std::make_unique<Model>(), .numbers = {}};
  Model& model = *part.model;
  std::set<param::ParameterId> used;
  for (const BlockRange& range : ranges) {
    for (auto block = static_cast<std::size_t>(range.begin);
         block < static_cast<std::size_t>(range.end); ++block) {
      const auto ids = whole->blocks[block]->parameters();
      used.insert(ids.begin(), ids.end());
      model.blocks.push_back(std::move(whole->blocks[block]));
      model.costs.push_back(whole->costs[block]);
    }
  }
  part.numbers.assign(used.begin(), used.end());
  std::vector<param::ParameterId> new_ids(whole->parameters.size(), -1);
  for (const param::ParameterId id : part.numbers) {
    new_ids[static_cast<std::size_t>(id)] =
        static_cast<param::ParameterId>(model.parameters.size());
    model.parameters.push_back(whole->parameters[static_cast<std::size_t>(id)]);
  }
  for (const auto& block : model.blocks) block->renumber(new_ids);
  model.buffers = whole->buffers;
  model.table_values = whole->table_values;
  model.width = whole->width;
  model.takes_tokens = ranges.front().begin == 0;
  model.gives_losses = ranges.back().end == static_cast<std::int64_t>(whole->blocks.size());
  return part;
}

}  // namespace dtrain::model
