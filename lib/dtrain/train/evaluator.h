// Evaluates the loss on held-out text.
#pragma once

#include <functional>
#include <optional>

#include "dtrain/data/loader.h"
#include "dtrain/parallel/engine/step_engine.h"

namespace dtrain::train {

/// The loss over all of `sequences`, in nats per token, without dropout. A sequence is computed
/// beside the same others (batch_size at a time) and its loss is added at the same place whatever
/// the number of ranks: the result has the same bits for every dp. Nothing if wants_stop, which is
/// asked after each batch, was true on a rank before the end.
///
/// Collective: every rank of the world.
/// Throws:     Error{data} as EvaluationSequences::read.
[[nodiscard]] std::optional<double> evaluate(parallel::StepEngine& engine,
                                             const data::EvaluationSequences& sequences,
                                             std::int64_t batch_size,
                                             const std::function<bool()>& wants_stop);

}  // namespace dtrain::train
