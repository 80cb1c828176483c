// Checks each step's loss and gradient norm for non-finite values and spikes; counts skipped
// updates.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "dtrain/parallel/engine/step_engine.h"
#include "dtrain/train/internal/numerical_failure.h"
#include "dtrain/train/internal/run_history.h"
#include "dtrain/train/internal/spike_detector.h"
#include "dtrain/train/internal/train_context.h"

namespace dtrain::train {

/// Decides which updates are skipped, warns of them, and decides whether the run must stop. All
/// ranks see the same loss and norm, so all make the same decisions.
///
/// Threads: one.
class UpdateGuard {
 public:
  /// before: the history that the run resumes with. `context` must outlive this.
  UpdateGuard(const TrainContext& context, const RunHistory& before)
      : context_(context),
        spikes_(context.config.train.spike_threshold, before.spikes),
        skipped_in_a_row_(before.skipped_in_a_row) {}

  /// Returns the limits of the step after `step`; its update is skipped if it exceeds them.
  [[nodiscard]] parallel::StepLimits begin_step(std::int64_t step);
  /// Warns if `step` was a spike or its update was skipped; counts skipped updates. Returns why the
  /// run must stop; empty if it continues.
  [[nodiscard]] std::optional<NumericalFailure> end_step(std::int64_t step,
                                                         const parallel::StepResult& result);

  /// Updates skipped since this launch.
  [[nodiscard]] std::int64_t num_skipped() const { return num_skipped_; }
  /// The latest consecutive updates that were skipped, also before this launch.
  [[nodiscard]] std::int64_t skipped_in_a_row() const { return skipped_in_a_row_; }
  [[nodiscard]] const SpikeStatistics& statistics() const { return spikes_.statistics(); }

 private:
  void warn(std::int64_t step, const std::string& message);
  [[nodiscard]] std::string advice_on_skips(const parallel::StepResult& result) const;

  const TrainContext& context_;
  SpikeDetector spikes_;
  parallel::StepLimits limits_;  // limits of the step in progress
  std::int64_t num_skipped_ = 0;
  std::int64_t skipped_in_a_row_;
};

}  // namespace dtrain::train
