// Which parameters form a unit: what is gathered, freed and reduced at once.
#pragma once

#include <set>
#include <span>
#include <vector>

#include "dtrain/config/values.h"
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

}  // namespace dtrain::parallel
