#include "dtrain/parallel/data/unit_schedule.h"

#include <algorithm>
#include <map>
#include <set>

namespace dtrain::parallel {
namespace {

// Consecutive uses of a unit, from its gathering to its freeing. Positions in the list of actions.
struct Visit {
  param::UnitId unit;
  std::size_t first = 0;
  std::size_t last = 0;
};

class Builder {
 public:
  Builder(std::span<const Action> actions, const UnitUses& uses, const UnitScheduleOptions& options)
      : actions_(actions), uses_(uses), options_(options) {
    schedule_.before.resize(actions.size());
    schedule_.after.resize(actions.size());
    std::size_t computed = 0;
    for (const Action& action : actions) {
      places_.push_back(computed);
      if (is_compute(action.kind)) ++computed;
    }
  }

  UnitSchedule build() {
    if (options_.reshard != Reshard::never) {
      find_visits();
      place_gathers();
    }
    place_reductions();
    return std::move(schedule_);
  }

 private:
  [[nodiscard]] const std::vector<param::UnitId>& units_of(std::size_t action) const {
    return uses_.of(actions_[action]);
  }

  void find_visits() {
    std::map<param::UnitId, std::size_t> latest;  // by unit: its last visit so far
    for (std::size_t action = 0; action < actions_.size(); ++action) {
      for (const param::UnitId unit : units_of(action)) {
        const auto found = latest.find(unit);
        if (found != latest.end() && goes_on(visits_[found->second], action)) {
          visits_[found->second].last = action;
        } else {
          latest[unit] = visits_.size();
          visits_.push_back({unit, action, action});
        }
      }
    }
    ending_.resize(actions_.size());
    for (const Visit& visit : visits_) ending_[visit.last].push_back(visit.unit);
  }

  [[nodiscard]] bool goes_on(const Visit& visit, std::size_t action) const {
    // Sends and receives do not end a unit's visit.
    return options_.reshard == Reshard::after_backward ||
           places_[visit.last] + 1 == places_[action];
  }

  void place_gathers() {
    for (std::size_t action = 0; action < actions_.size(); ++action) {
      while (next_ < visits_.size() && visits_[next_].first == action)
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

  // Gathers units whose turn comes next, as far as the settings allow.
  void prefetch(std::vector<UnitEvent>& events, bool is_before) {
    while (next_ < visits_.size() && may_prefetch(visits_[next_], is_before)) gather_next(events);
  }

  [[nodiscard]] bool may_prefetch(const Visit& visit, bool is_before) const {
    // After a use one of the units that the limit allows is already on its way out.
    const auto taken = static_cast<std::int64_t>(gathered_.size()) + (is_before ? 0 : 1);
    if (taken >= options_.limit_gathers || gathered_.contains(visit.unit)) return false;
    if (actions_[visit.first].kind == ActionKind::forward) {
      return options_.forward_prefetch && is_before;
    }
    return options_.backward_prefetch ==
           (is_before ? BackwardPrefetch::pre : BackwardPrefetch::post);
  }

  void gather_next(std::vector<UnitEvent>& events) {
    const param::UnitId unit = visits_[next_++].unit;
    events.push_back({UnitEventKind::gather, unit});
    gathered_.insert(unit);
    schedule_.max_gathered =
        std::max(schedule_.max_gathered, static_cast<std::int64_t>(gathered_.size()));
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
      // Blocks that run again give no gradient yet.
      for (const param::UnitId unit : uses_.of_block[block]) {
        if (uses_.frozen.contains(unit)) continue;
        if (!placed.insert({microbatch, unit}).second) continue;
        schedule_.after[action].push_back({UnitEventKind::reduce, unit});
      }
    }
  }

  std::span<const Action> actions_;
  std::vector<std::size_t> places_;  // by action: how many blocks run before it
  const UnitUses& uses_;
  const UnitScheduleOptions& options_;
  UnitSchedule schedule_;
  std::vector<Visit> visits_;                       // by first use
  std::vector<std::vector<param::UnitId>> ending_;  // by action: units whose visit ends with it
  std::size_t next_ = 0;                            // visit to be gathered
  std::set<param::UnitId> gathered_;
};

}  // namespace

void UnitSchedule::for_each(const std::function<void(const UnitEvent&)>& visit) const {
  for (std::size_t action = 0; action < before.size(); ++action) {
    std::for_each(before[action].begin(), before[action].end(), visit);
    std::for_each(after[action].begin(), after[action].end(), visit);
  }
}

std::int64_t UnitSchedule::count(UnitEventKind kind, std::optional<param::UnitId> unit) const {
  std::int64_t found = 0;
  for_each([&](const UnitEvent& event) {
    if (event.kind == kind && (!unit || event.unit == unit)) ++found;
  });
  return found;
}

UnitSchedule make_unit_schedule(std::span<const Action> actions, const UnitUses& uses,
                                const UnitScheduleOptions& options) {
  return Builder(actions, uses, options).build();
}

}  // namespace dtrain::parallel
