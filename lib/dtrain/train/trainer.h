// The training loop.
#pragma once

#include <cstdint>

#include "dtrain/data/loader.h"
#include "dtrain/optim/schedule.h"
#include "dtrain/train/internal/numbers_guard.h"
#include "dtrain/train/internal/profiler.h"
#include "dtrain/train/internal/run_meter.h"
#include "dtrain/train/internal/train_parts.h"
#include "dtrain/train/internal/validation.h"
#include "dtrain/train/start_point.h"

namespace dtrain::train {

/// How a run ended.
struct RunEnd {
  bool stopped = false;  ///< early, with a checkpoint
  std::int64_t step = 0;
};

/// Drives an engine over the training data until train.steps updates are done, train.patience is
/// at its end, or somebody asks it to stop. Nothing is saved whose loss, parameters or optimizer
/// state are not finite.
///
/// Collective: every rank constructs and runs one.
/// Throws:     Error{numerics} on all ranks at once, naming the newest checkpoint: for a loss or
///             gradient that is not finite, before the update; after more updates in a row that
///             were left out than train.max_skipped; for a model that is not finite, before a save;
///             Error{data}, Error{checkpoint} for files; what Work::wait throws.
class Trainer {
 public:
  Trainer(const TrainParts& parts, const StartPoint& start);
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

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
  void check_state();
  void save_final();
  [[nodiscard]] checkpoint::SavePoint save_point() const;
  [[noreturn]] void fail(const BadNumbers& bad);

  const TrainParts parts_;
  data::Loader loader_;
  optim::Schedule schedule_;
  const std::int64_t data_step_;  // after which the data began
  std::int64_t step_;             // steps of the run that are done
  RunMeter meter_;
  Validation validation_;
  StepGuard step_guard_;
  StateGuard state_guard_;
  Profiler profiler_;
};

}  // namespace dtrain::train
