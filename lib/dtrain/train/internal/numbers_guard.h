// Finds numbers with which a run must not go on, or must not be saved.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "dtrain/data/loader.h"
#include "dtrain/parallel/engine/step_engine.h"
#include "dtrain/train/internal/spike_guard.h"
#include "dtrain/train/internal/train_parts.h"

namespace dtrain::train {

/// Why a run must end, as parts of a message.
struct BadNumbers {
  std::string found;   ///< "step 7: loss nan, gradient norm nan: stopped before the update"
  std::string advice;  ///< "lower --lr"
};

/// What helps against numbers that are not finite.
[[nodiscard]] std::string advice_on_numbers(const parallel::StepEngine& engine);

/// Judges each step's loss and gradient norm; all ranks know the same figures, so all decide alike.
///
/// Threads: one.
class StepGuard {
 public:
  /// `parts` must outlive this.
  StepGuard(const TrainParts& parts, const SpikeStatistics& before)
      : parts_(parts), spikes_(parts.config.train.spike_threshold, before) {}

  /// Beyond these the step after `step` makes no update.
  [[nodiscard]] parallel::StepLimits begin_step(std::int64_t step);
  /// Warns of what is odd in the result of `step`, counts updates that were skipped, and returns why
  /// the run must end, if so.
  [[nodiscard]] std::optional<BadNumbers> end_step(std::int64_t step,
                                                   const parallel::StepResult& result);

  /// Updates since this start.
  [[nodiscard]] std::int64_t num_skipped() const { return num_skipped_; }
  [[nodiscard]] const SpikeStatistics& statistics() const { return spikes_.statistics(); }

 private:
  void warn(std::int64_t step, const std::string& message);
  [[nodiscard]] std::string advice_on_skips(const parallel::StepResult& result) const;

  const TrainParts& parts_;
  SpikeGuard spikes_;
  parallel::StepLimits limits_;  // of the step under way
  std::int64_t num_skipped_ = 0;
  std::int64_t skipped_in_a_row_ = 0;
};

/// Looks at what is to be saved: parameters may be finite and yet so large that no loss is. Copies
/// of one value drift apart on ranks of different CPUs; they are made equal first.
///
/// Threads: one.
class StateGuard {
 public:
  /// `parts` must outlive this.
  explicit StateGuard(const TrainParts& parts);

  /// Before anything is measured or saved after `step`.
  ///
  /// Collective.
  void make_copies_equal(std::int64_t step);
  /// The loss after `step` was evaluated and is finite.
  void note_evaluated(std::int64_t step) { evaluated_step_ = step; }
  /// Returns why the state after `step` must not be saved, if so. Costs one pass over what this rank
  /// will save and, if the step was not evaluated, the forward pass of a microbatch.
  ///
  /// Collective.
  [[nodiscard]] std::optional<BadNumbers> find_bad(std::int64_t step);

 private:
  const TrainParts& parts_;
  data::EvaluationSequences probe_;  // training text that shows whether the loss is finite
  std::int64_t evaluated_step_ = -1;
  std::int64_t checked_step_ = -1;  // whose state was found finite
  std::int64_t equal_step_ = -1;    // after which copies were made equal
};

}  // namespace dtrain::train
