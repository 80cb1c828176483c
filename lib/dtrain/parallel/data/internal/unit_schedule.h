// Which parameters form a unit, and when units are gathered, freed and reduced in a step: pure data,
// known before anything runs.
#pragma once

#include <cstdint>
#include <functional>
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

/// The first parameter of each unit. The policy holds within each of the regions that begin at
/// region_begins (ascending from 0), beyond which no unit goes. Parameters that are not held make
/// no unit of their own.
[[nodiscard]] base::IndexedVector<param::UnitId, param::ParameterId> unit_begins(
    const model::Model& model, const WrapPolicy& policy,
    std::span<const param::ParameterId> region_begins);

/// How the blocks of a model use its units.
struct UnitUses {
  /// The units of each block, ascending.
  base::IndexedVector<BlockId, std::vector<param::UnitId>> of_block;
  /// Those of all blocks that run again for a block's backward, its own included; empty where every
  /// block's backward uses its own alone.
  base::IndexedVector<BlockId, std::vector<param::UnitId>> of_backward = {};
  /// Gathered, but never reduced.
  std::set<param::UnitId> frozen = {};

  [[nodiscard]] const std::vector<param::UnitId>& of(const Action& action) const;
};

[[nodiscard]] UnitUses unit_uses(const model::Model& model, const param::ArenaLayout& layout,
                                 const RecomputePlan& recompute);

using config::BackwardPrefetch;

/// How long a unit stays gathered.
enum class Reshard {
  never,           ///< always there: nothing is gathered or freed in a step
  after_backward,  ///< from its first use in a step to its last
  after_use,       ///< until the next action does not use it
};

struct UnitScheduleOptions {
  Reshard reshard = Reshard::after_use;
  BackwardPrefetch backward_prefetch = BackwardPrefetch::pre;
  bool forward_prefetch = false;        ///< gather the next unit under the use of one
  std::int64_t limit_gathers = 2;       ///< units there or under way; only a use goes beyond
  bool reduce_every_microbatch = true;  ///< else in the last one alone

  bool operator==(const UnitScheduleOptions&) const = default;
};

enum class UnitEventKind { gather, free, reduce };

struct UnitEvent {
  UnitEventKind kind = UnitEventKind::gather;
  param::UnitId unit;

  bool operator==(const UnitEvent&) const = default;
};

/// The events around each action, in order; gathers and reductions begin there and run beside
/// what follows. A unit that an action uses is waited for between `before` and the action.
struct UnitSchedule {
  std::vector<std::vector<UnitEvent>> before;  ///< by action
  std::vector<std::vector<UnitEvent>> after;
  std::int64_t max_gathered = 0;  ///< units there or under way at one time

  /// Calls visit(event) for all events of a step, in order.
  void for_each(const std::function<void(const UnitEvent&)>& visit) const;
  /// Events of a kind in a step, of one unit or of all.
  [[nodiscard]] std::int64_t count(UnitEventKind kind,
                                   std::optional<param::UnitId> unit = {}) const;
};

[[nodiscard]] UnitSchedule make_unit_schedule(std::span<const Action> actions, const UnitUses& uses,
                                              const UnitScheduleOptions& options);

}  // namespace dtrain::parallel
