// Makes what several ranks hold alike equal again, where their CPUs round differently.
#pragma once

#include <span>

#include "dtrain/parallel/data/parameter_store.h"
#include "dtrain/parallel/stage/stage_plan.h"

namespace dtrain::parallel {

/// A rank's part of a model, and the groups of ranks that hold copies of it.
struct CopyGroups {
  const model::Model& model;
  const param::ArenaLayout& layout;
  const DataGroups& data;
  comm::ProcessGroup* tensor = nullptr;  ///< null: of size 1
  std::span<const SharedParameters> shared = {};
};

/// Replaces this rank's elements of each arena by those of the first rank that holds copies of
/// them: first along the data axis, then of the tensor axis, then of the stages.
///
/// Collective: over all groups, with arenas of the same kinds in the same order.
/// Throws:     what Work::wait throws.
void make_copies_equal(const CopyGroups& groups, std::span<const param::Arena* const> arenas);

}  // namespace dtrain::parallel
