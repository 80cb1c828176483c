#include "dtrain/parallel/pipeline/run/stage_plan.h"

#include <algorithm>

namespace dtrain::parallel {

std::vector<model::BlockRange> StagePlan::levels(const model::Model& model) const {
  const model::BlockRange all = model.levels();
  std::vector<model::BlockRange> ranges;
  for (std::size_t chunk = 0; chunk < chunk_begins.size(); ++chunk) {
    const BlockId end = chunk + 1 < chunk_begins.size() ? chunk_begins[chunk + 1] : all.end;
    ranges.push_back({std::max(chunk_begins[chunk], all.begin), std::min(end, all.end)});
  }
  return ranges;
}

}  // namespace dtrain::parallel
