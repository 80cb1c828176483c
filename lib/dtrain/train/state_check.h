// Checks that a run's state is finite before a save; makes the replicas of a value equal across
// ranks.
#pragma once

#include <cstdint>
#include <optional>

#include "dtrain/config/config.h"
#include "dtrain/data/loader.h"
#include "dtrain/data/split.h"
#include "dtrain/mesh/mesh_groups.h"
#include "dtrain/parallel/engine/step_engine.h"
#include "dtrain/train/internal/numerical_failure.h"
#include "dtrain/train/step_clock.h"

namespace dtrain::train {

/// Detects parameters and optimizer state with which a run must not continue: non-finite values,
/// and finite parameters so large that the loss is not finite, for which it computes a loss.
/// Replicas drift apart on ranks with CPUs of different types, so they are first made equal.
///
/// Threads: one.
class StateCheck {
 public:
  struct Options {
    const config::Config& config;
    const mesh::MeshGroups& groups;
    comm::ProcessGroup& world;  ///< all ranks
    parallel::StepEngine& engine;
    const data::Split& split;
    StepClock& clock;  ///< checks are excluded from the step
    bool are_cpus_mixed = false;
  };

  /// All that the options refer to must outlive this.
  explicit StateCheck(const Options& options);

  /// Makes copies equal. Call after `step`, before evaluations, samples and saves. No-op unless CPU
  /// types are mixed.
  ///
  /// Collective: every rank of the world.
  void make_copies_equal(std::int64_t step);

  /// Checks the validation loss after `step`; find_failure() then need not compute another loss.
  /// Returns why the run must stop; empty if it may continue.
  [[nodiscard]] std::optional<NumericalFailure> note_evaluated(std::int64_t step, double loss);

  /// Returns why the state after `step` must not be saved; empty if it may be saved. Costs one pass
  /// over this rank's part of a checkpoint and, unless the step was evaluated, the forward pass of
  /// a microbatch.
  ///
  /// Collective: every rank of the world.
  [[nodiscard]] std::optional<NumericalFailure> find_failure(std::int64_t step);

 private:
  [[nodiscard]] std::optional<NumericalFailure> check_tensors(std::int64_t step);
  [[nodiscard]] std::optional<NumericalFailure> check_loss(std::int64_t step);

  const Options options_;
  data::EvaluationSequences probe_;  // training text whose loss must be finite
  std::int64_t evaluated_step_ = -1;
  std::int64_t checked_step_ = -1;    // the last step whose state was found finite
  std::int64_t equalized_step_ = -1;  // the last step after which copies were made equal
};

}  // namespace dtrain::train
