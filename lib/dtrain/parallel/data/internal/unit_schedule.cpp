#include "dtrain/parallel/data/internal/unit_schedule.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <utility>

namespace dtrain::parallel {
namespace {

using param::ParameterId;

// Returns the held parameters that no block uses together with their predecessor: boundaries of
// block units.
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

// Merges neighbouring units into units of at least min_elements. The last entry of `begins` is the
// exclusive end.
std::vector<ParameterId> merged(std::span<const ParameterId> begins, const model::Model& model,
                                std::int64_t min_elements) {
  std::vector<ParameterId> result{begins.front()};
  std::int64_t elements = 0;  // of the current unit
  for (std::size_t unit = 0; unit + 1 < begins.size(); ++unit) {
    if (elements >= min_elements && unit > 0) {
      result.push_back(begins[unit]);
      elements = 0;
    }
    for (ParameterId id = begins[unit]; id < begins[unit + 1]; ++id) {
      elements += model.parameters[id].num_elements();
    }
  }
  // A smaller remainder joins the last unit.
  if (elements < min_elements && result.size() > 1) result.pop_back();
  return result;
}

// Returns the units of one region. `begins`: its smallest units, then the exclusive end.
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

// The actions from a unit's gather to its free, as positions in the action list.
struct Residency {
  param::UnitId unit;
  std::size_t first = 0;
  std::size_t last = 0;
};

class ScheduleBuilder {
 public:
  ScheduleBuilder(std::span<const Action> actions, const UnitUses& uses,
                  const UnitScheduleOptions& options)
      : actions_(actions), uses_(uses), options_(options) {
    schedule_.before.resize(actions.size());
    schedule_.after.resize(actions.size());
    std::size_t computed = 0;
    for (const Action& action : actions) {
      compute_index_.push_back(computed);
      if (is_compute(action.kind)) ++computed;
    }
  }

  UnitSchedule build() {
    if (options_.reshard != Reshard::never) {
      find_residencies();
      place_gathers();
    }
    place_reductions();
    schedule_.for_each([this](const UnitEvent& event) { ++schedule_.counts[event]; });
    return std::move(schedule_);
  }

 private:
  [[nodiscard]] const std::vector<param::UnitId>& units_of(std::size_t action) const {
    return uses_.of(actions_[action]);
  }

  void find_residencies() {
    std::map<param::UnitId, std::size_t> latest;  // by unit: its last residency so far
    for (std::size_t action = 0; action < actions_.size(); ++action) {
      for (const param::UnitId unit : units_of(action)) {
        const auto found = latest.find(unit);
        if (found != latest.end() && extends(residencies_[found->second], action)) {
          residencies_[found->second].last = action;
        } else {
          latest[unit] = residencies_.size();
          residencies_.push_back({unit, action, action});
        }
      }
    }
    ending_.resize(actions_.size());
    for (const Residency& residency : residencies_)
      ending_[residency.last].push_back(residency.unit);
  }

  [[nodiscard]] bool extends(const Residency& residency, std::size_t action) const {
    // Sends and receives in between do not free a unit.
    return options_.reshard == Reshard::after_backward ||
           compute_index_[residency.last] + 1 == compute_index_[action];
  }

  void place_gathers() {
    for (std::size_t action = 0; action < actions_.size(); ++action) {
      while (next_ < residencies_.size() && residencies_[next_].first == action)
        gather_next(schedule_.before[action]);
      const std::vector<param::UnitId>& ending = ending_[action];
      if (!ending.empty()) prefetch(schedule_.before[action], /*is_before=*/true);
      for (const param::UnitId unit : ending) {
        schedule_.after[action].push_back({UnitEventKind::free, unit});
        gathered_.erase(unit);
      }
      if (!ending.empty()) prefetch(schedule_.after[action], /*is_before=*/false);
    }
  }

  // Gathers the next units, within the prefetch settings and the limit.
  void prefetch(std::vector<UnitEvent>& events, bool is_before) {
    while (next_ < residencies_.size() && may_prefetch(residencies_[next_], is_before))
      gather_next(events);
  }

  [[nodiscard]] bool may_prefetch(const Residency& next, bool is_before) const {
    // After an action, the unit just freed still counts against the limit.
    const auto taken = std::ssize(gathered_) + (is_before ? 0 : 1);
    if (taken >= options_.limit_gathers || gathered_.contains(next.unit)) return false;
    if (actions_[next.first].kind == ActionKind::forward) {
      return options_.forward_prefetch && is_before;
    }
    return options_.backward_prefetch ==
           (is_before ? BackwardPrefetch::pre : BackwardPrefetch::post);
  }

  void gather_next(std::vector<UnitEvent>& events) {
    const param::UnitId unit = residencies_[next_++].unit;
    events.push_back({UnitEventKind::gather, unit});
    gathered_.insert(unit);
    schedule_.max_gathered = std::max(schedule_.max_gathered, std::ssize(gathered_));
  }

  // A unit's gradient is final after the last backward that uses it in a microbatch.
  void place_reductions() {
    MicrobatchId last_microbatch;
    for (const Action& action : actions_) {
      last_microbatch = std::max(last_microbatch, action.microbatch);
    }
    std::set<std::pair<MicrobatchId, param::UnitId>> placed;  // (microbatch, unit)
    for (std::size_t action = actions_.size(); action-- > 0;) {
      const auto& [kind, block, microbatch] = actions_[action];
      const bool is_reduced = options_.reduce_every_microbatch || microbatch == last_microbatch;
      if (kind != ActionKind::backward || !is_reduced) continue;
      // Recomputed blocks other than this one have no gradient yet.
      for (const param::UnitId unit : uses_.of_block[block]) {
        if (uses_.frozen.contains(unit)) continue;
        if (!placed.insert({microbatch, unit}).second) continue;
        schedule_.after[action].push_back({UnitEventKind::reduce, unit});
      }
    }
  }

  std::span<const Action> actions_;
  std::vector<std::size_t> compute_index_;  // by action: number of passes before it
  const UnitUses& uses_;
  const UnitScheduleOptions& options_;
  UnitSchedule schedule_;
  std::vector<Residency> residencies_;              // by first use
  std::vector<std::vector<param::UnitId>> ending_;  // by action: units freed after it
  std::size_t next_ = 0;                            // residency to be gathered next
  std::set<param::UnitId> gathered_;
};

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
  const bool is_recomputed = action.kind == ActionKind::backward && !of_backward.empty();
  return is_recomputed ? of_backward[action.block] : of_block[action.block];
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

void UnitSchedule::for_each(const std::function<void(const UnitEvent&)>& visit) const {
  for (std::size_t action = 0; action < before.size(); ++action) {
    std::for_each(before[action].begin(), before[action].end(), visit);
    std::for_each(after[action].begin(), after[action].end(), visit);
  }
}

std::int64_t UnitSchedule::count(UnitEventKind kind, std::optional<param::UnitId> unit) const {
  std::int64_t found = 0;
  for (const auto& [event, times] : counts) {
    if (event.kind == kind && (!unit || event.unit == *unit)) found += times;
  }
  return found;
}

UnitSchedule make_unit_schedule(std::span<const Action> actions, const UnitUses& uses,
                                const UnitScheduleOptions& options) {
  return ScheduleBuilder(actions, uses, options).build();
}

}  // namespace dtrain::parallel
