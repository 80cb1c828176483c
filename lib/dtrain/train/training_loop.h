// The training loop: the order of steps, evaluations, samples and saves.
#pragma once

#include <cstdint>

#include "dtrain/data/loader.h"
#include "dtrain/optim/schedule.h"
#include "dtrain/train/internal/profiler.h"
#include "dtrain/train/internal/step_metrics.h"
#include "dtrain/train/internal/train_context.h"
#include "dtrain/train/internal/update_guard.h"
#include "dtrain/train/internal/validation.h"
#include "dtrain/train/start_point.h"

namespace dtrain::train {

/// How a run ended.
struct RunEnd {
  bool stopped = false;  ///< stopped early on request, after saving a checkpoint
  std::int64_t step = 0;
};

/// Trains until train.steps steps are done, train.patience is exhausted, or a stop is requested.
/// The loop calls parts such as StepMetrics, Validation and Checkpointer, which report their own
/// results; no part calls the loop. Never saves a state whose loss, parameters or optimizer state
/// are not finite.
///
/// Collective: every rank constructs and runs one.
/// Throws:     Error{numerics} on all ranks after the same step, naming the latest checkpoint:
///             before an update, for a non-finite loss or gradient; for more consecutive skipped
///             updates than train.max_skipped; before a save, for a non-finite state. Error{data}
///             and Error{checkpoint} for files; what Work::wait throws.
class TrainingLoop {
 public:
  TrainingLoop(const TrainContext& context, const StartPoint& start);
  TrainingLoop(const TrainingLoop&) = delete;
  TrainingLoop& operator=(const TrainingLoop&) = delete;

  RunEnd run();

 private:
  RunEnd run_steps();
  void profile();
  [[nodiscard]] parallel::Votes make_step();
  [[nodiscard]] parallel::StepResult train_step();
  [[nodiscard]] bool stops_after(bool stop_requested);
  [[nodiscard]] bool evaluate();
  void write_sample();
  void save_after_step(const parallel::Votes& votes);
  void finish();
  [[nodiscard]] checkpoint::SavePoint save_point() const;

  const TrainContext context_;
  data::Loader loader_;
  optim::Schedule schedule_;
  const std::int64_t data_step_;  // the step after which the run started to read this data
  std::int64_t step_;             // finished steps of the run
  StepMetrics metrics_;
  Validation validation_;
  UpdateGuard update_guard_;
  Profiler profiler_;
};

}  // namespace dtrain::train
