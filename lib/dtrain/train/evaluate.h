// Evaluates the model that is being trained.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "dtrain/data/loader.h"
#include "dtrain/parallel/engine/step_engine.h"

namespace dtrain::train {

/// Returns the loss over all of `sequences` in nats per token; empty if wants_stop became true on a
/// rank before the end.
///
/// Collective: every rank of the engine's world.
[[nodiscard]] std::optional<double> evaluate(parallel::StepEngine& engine,
                                             const data::EvaluationSequences& sequences,
                                             std::int64_t batch_size,
                                             const std::function<bool()>& wants_stop);

}  // namespace dtrain::train
