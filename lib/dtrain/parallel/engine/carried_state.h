// What gradient reducers carry from step to step, in checkpoints.
#pragma once

#include "dtrain/checkpoint/state.h"
#include "dtrain/parallel/engine/engine_setup.h"

namespace dtrain::parallel {

inline constexpr const char* kReducerPrefix = "reducer.";

/// This rank's part, sharing memory.
///
/// reducer.residual.C.NAME: those of contributor C, in the parameter's storage shape. Contributors
/// to a parameter's gradient are counted over the stages that hold it, and in each over replicas.
/// reducer.factor.PLACE.NAME: equal on all ranks that hold the same part of the parameter.
[[nodiscard]] checkpoint::State carried_pieces(const EngineSetup& setup, const Carried& carried);

/// Loads what the rank carries. With C contributors, contributor c takes the sum of the residuals
/// saved as c, c + C, c + 2C, ..., added in this order; so any layout keeps their total. Without
/// saved residuals it starts at 0. Frozen parameters have none. A factor that was saved for another
/// part starts anew.
void load_carried(const EngineSetup& setup, const Carried& carried, checkpoint::Source& source);

/// Returns whether there are residuals for this rank's parameters that `carried` has no place for.
[[nodiscard]] bool leaves_residuals(const EngineSetup& setup, const Carried& carried,
                                    checkpoint::Source& source);

}  // namespace dtrain::parallel
