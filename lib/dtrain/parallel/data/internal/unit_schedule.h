// Groups parameters into units, and schedules when units are gathered, freed and reduced in a step.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "dtrain/config/values/values.h"
#include "dtrain/model/model.h"
#include "dtrain/parallel/action.h"
#include "dtrain/parallel/recompute.h"
#include "dtrain/param/arena.h"

namespace dtrain::parallel {

using config::WrapPolicy;

/// Returns the first parameter of each unit. No unit crosses the boundaries region_begins
/// (ascending from 0). No unit consists only of parameters that this rank does not hold.
[[nodiscard]] base::IndexedVector<param::UnitId, param::ParameterId> unit_begins(
    const model::Model& model, const WrapPolicy& policy,
    std::span<const param::ParameterId> region_begins);

/// The units that each block of a model uses.
struct UnitUses {
  /// Units of each block, ascending.
  base::IndexedVector<BlockId, std::vector<param::UnitId>> of_block;
  /// Units used in each block's backward pass: those of the block and of all blocks recomputed for
  /// it. Empty without recomputation.
  base::IndexedVector<BlockId, std::vector<param::UnitId>> of_backward = {};
  /// Units that are gathered, but never reduced.
  std::set<param::UnitId> frozen = {};

  [[nodiscard]] const std::vector<param::UnitId>& of(const Action& action) const;
};

[[nodiscard]] UnitUses unit_uses(const model::Model& model, const param::ArenaLayout& layout,
                                 const RecomputePlan& recompute);

using config::BackwardPrefetch;

/// When a unit is freed after its use.
enum class Reshard {
  never,           ///< stays gathered across steps
  after_backward,  ///< after its last use in a step
  after_use,       ///< once the next action does not use it
};

/// Settings of the unit schedule.
struct UnitScheduleOptions {
  Reshard reshard = Reshard::after_use;
  BackwardPrefetch backward_prefetch = BackwardPrefetch::pre;
  bool forward_prefetch = false;        ///< gather the next unit while a unit is in use
  std::int64_t limit_gathers = 2;       ///< limit of units gathered or in flight, for prefetching
  bool reduce_every_microbatch = true;  ///< false: only the last microbatch

  bool operator==(const UnitScheduleOptions&) const = default;
};

enum class UnitEventKind { gather, free, reduce };

/// A gather, free or reduction of one unit.
struct UnitEvent {
  UnitEventKind kind = UnitEventKind::gather;
  param::UnitId unit;

  auto operator<=>(const UnitEvent&) const = default;
};

/// The events around each action, in order. Gathers and reductions start there and run
/// asynchronously. Between the `before` events and the action, the executor waits for the units
/// that the action uses.
struct UnitSchedule {
  std::vector<std::vector<UnitEvent>> before;  ///< by action
  std::vector<std::vector<UnitEvent>> after;
  std::int64_t max_gathered = 0;                  ///< peak number of units gathered or in flight
  std::map<UnitEvent, std::int64_t> counts = {};  ///< how often each event occurs in a step

  /// Calls visit(event) for all events of a step, in order.
  void for_each(const std::function<void(const UnitEvent&)>& visit) const;
  /// Returns the number of events of a kind in a step, of one unit or of all.
  [[nodiscard]] std::int64_t count(UnitEventKind kind,
                                   std::optional<param::UnitId> unit = {}) const;
};

[[nodiscard]] UnitSchedule make_unit_schedule(std::span<const Action> actions, const UnitUses& uses,
                                              const UnitScheduleOptions& options);

}  // namespace dtrain::parallel
