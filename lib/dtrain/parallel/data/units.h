// Which parameters form a unit: what is gathered, freed and reduced at once.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "dtrain/config/values.h"
#include "dtrain/model/model.h"
#include "dtrain/parallel/engine/action.h"
#include "dtrain/parallel/plan/recompute.h"
#include "dtrain/param/arena.h"

namespace dtrain::parallel {

using config::WrapPolicy;

/// The first parameter of each unit. The policy holds within each of the regions that begin at
/// region_begins (ascending from 0), beyond which no unit goes.
[[nodiscard]] std::vector<param::ParameterId> unit_begins(
    const model::Model& model, const WrapPolicy& policy,
    std::span<const param::ParameterId> region_begins);

/// How the blocks of a model use its units.
struct UnitUses {
  std::vector<std::vector<std::int64_t>> of_block;  ///< by block: its units, ascending
  /// By block: those of all blocks that run again for its backward, its own included; empty where
  /// every block's backward uses its own alone.
  std::vector<std::vector<std::int64_t>> of_backward = {};
  std::vector<bool> is_tied;  ///< by unit: several blocks share one of its parameters

  [[nodiscard]] const std::vector<std::int64_t>& of(const Action& action) const;
};

[[nodiscard]] UnitUses unit_uses(const model::Model& model, const param::ArenaLayout& layout,
                                 const RecomputePlan& recompute);

}  // namespace dtrain::parallel
