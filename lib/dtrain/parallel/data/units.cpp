#include "dtrain/parallel/data/units.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <utility>

namespace dtrain::parallel {
namespace {

using param::ParameterId;

// Cuts before every parameter that is held, but that no block uses together with its predecessor.
std::set<ParameterId> begins_by_block(const model::Model& model) {
  std::set<ParameterId> begins;
  for (const ParameterId id : model.parameters.ids()) {
    if (model.parameters[id].is_held()) begins.insert(id);
  }
  for (const auto& block : model.blocks) {
    const auto ids = block->parameters();
    if (ids.empty()) continue;
    const auto [first, last] = std::minmax_element(ids.begin(), ids.end());
    begins.erase(begins.upper_bound(*first), begins.upper_bound(*last));
  }
  return begins;
}

// Units of at least min_elements, made of neighbours in `begins`, which ends with the exclusive
// end.
std::vector<ParameterId> merged(std::span<const ParameterId> begins, const model::Model& model,
                                std::int64_t min_elements) {
  std::vector<ParameterId> result{begins.front()};
  std::int64_t elements = 0;  // of the unit that grows
  for (std::size_t unit = 0; unit + 1 < begins.size(); ++unit) {
    if (elements >= min_elements && unit > 0) {
      result.push_back(begins[unit]);
      elements = 0;
    }
    for (ParameterId id = begins[unit]; id < begins[unit + 1]; ++id) {
      elements += model.parameters[id].num_elements();
    }
  }
  // Elements left at the end are no unit of their own.
  if (elements < min_elements && result.size() > 1) result.pop_back();
  return result;
}

// The units of one region, whose smallest units are `begins`, with the exclusive end.
std::vector<ParameterId> units_of_region(std::vector<ParameterId> begins, const model::Model& model,
                                         const WrapPolicy& policy) {
  switch (policy.kind) {
    case WrapPolicy::Kind::none:
      return {begins.front()};
    case WrapPolicy::Kind::size:
      return merged(begins, model, policy.min_elements);
    case WrapPolicy::Kind::block:
      break;
  }
  begins.pop_back();
  return begins;
}

}  // namespace

base::IndexedVector<param::UnitId, ParameterId> unit_begins(
    const model::Model& model, const WrapPolicy& policy,
    std::span<const ParameterId> region_begins) {
  std::set<ParameterId> by_block = begins_by_block(model);
  if (!by_block.empty()) by_block.erase(by_block.begin());  // the first unit begins at 0
  const ParameterId model_end = model.parameters.end_id();
  base::IndexedVector<param::UnitId, ParameterId> result;
  for (std::size_t region = 0; region < region_begins.size(); ++region) {
    const ParameterId begin = region_begins[region];
    const ParameterId end =
        region + 1 < region_begins.size() ? region_begins[region + 1] : model_end;
    std::vector<ParameterId> begins{begin};
    std::copy_if(by_block.begin(), by_block.end(), std::back_inserter(begins),
                 [&](ParameterId id) { return begin < id && id < end; });
    begins.push_back(end);
    for (const ParameterId unit : units_of_region(std::move(begins), model, policy))
      result.push_back(unit);
  }
  return result;
}

const std::vector<param::UnitId>& UnitUses::of(const Action& action) const {
  static const std::vector<param::UnitId> kNone;
  if (!is_compute(action.kind)) return kNone;
  const bool runs_again = action.kind == ActionKind::backward && !of_backward.empty();
  return runs_again ? of_backward[action.block] : of_block[action.block];
}

UnitUses unit_uses(const model::Model& model, const param::ArenaLayout& layout,
                   const RecomputePlan& recompute) {
  UnitUses uses;
  for (const param::UnitId unit : layout.units()) {
    if (layout.is_frozen(unit)) uses.frozen.insert(unit);
  }
  for (const auto& block : model.blocks) {
    std::set<param::UnitId> units;
    for (const ParameterId id : block->parameters()) units.insert(layout.unit_of(id));
    uses.of_block.push_back({units.begin(), units.end()});
  }
  uses.of_backward = uses.of_block;
  for (const RecomputeGroup& group : recompute.groups) {
    std::set<param::UnitId> units;
    for (BlockId block = group.begin; block < group.end; ++block) {
      const auto& of_one = uses.of_block[block];
      units.insert(of_one.begin(), of_one.end());
    }
    uses.of_backward[group.end - 1] = {units.begin(), units.end()};
  }
  return uses;
}

}  // namespace dtrain::parallel
