// The loss on sequences that no rank trains on.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "dtrain/parallel/engine/executor.h"
#include "dtrain/parallel/engine/loss_report.h"

namespace dtrain::parallel {

/// An evaluation over all ranks: batch b holds the sequences [b * batch_size, + batch_size), the
/// last one possibly fewer, and is computed by data-parallel rank b mod size.
struct EvaluationPlan {
  std::int64_t num_sequences = 0;
  std::int64_t length = 0;  ///< tokens of a sequence
  std::int64_t batch_size = 1;
  /// Reads the sequences [first, first + count). Asked for this rank's batches, one at a time.
  std::function<data::Batch(std::int64_t first, std::int64_t count)> read = {};
  /// Returns whether this rank wants to end early; asked after each batch. Empty: it never does.
  std::function<bool()> wants_stop = {};
};

/// The loss over the plan's sequences, without dropout: each one's sum over its tokens, added in
/// their order. Nothing if a rank wanted to stop before the last round began. A round is one batch
/// of every data-parallel rank; its losses travel while the next rounds are computed.
///
/// Collective: over all groups, with equal plans.
/// Throws:     what Work::wait throws.
[[nodiscard]] std::optional<StepLoss> evaluate(const EngineSetup& setup, Executor& executor,
                                               const EvaluationPlan& plan);

}  // namespace dtrain::parallel
