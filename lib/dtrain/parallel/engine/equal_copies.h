// Makes copies that several ranks hold equal again, where their CPUs round differently.
#pragma once

#include <span>

#include "dtrain/parallel/engine/engine_setup.h"

namespace dtrain::parallel {

/// Replaces this rank's elements of each arena by those of the first rank that holds copies of
/// them: first along the data axis, then of the tensor axis, then of the stages.
///
/// Collective: over all groups, with arenas of the same kinds in the same order.
/// Throws:     what Work::wait throws.
void make_copies_equal(const EngineSetup& setup, std::span<const param::Arena* const> arenas);

}  // namespace dtrain::parallel
