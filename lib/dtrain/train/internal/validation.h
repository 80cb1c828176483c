// Evaluates validation data while training.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <utility>

#include "dtrain/data/loader.h"
#include "dtrain/data/tokens/token_file.h"
#include "dtrain/train/internal/run_history.h"
#include "dtrain/train/internal/train_context.h"
#include "dtrain/train/start_point.h"

namespace dtrain::train {

/// Computes the validation loss and records the lowest one. All ranks get equal results.
///
/// Threads: one.
class Validation {
 public:
  /// `context` must outlive this.
  Validation(const TrainContext& context, const StartPoint& start);

  /// True if an evaluation is due after the step; always false without validation data.
  [[nodiscard]] bool is_due(std::int64_t step) const;
  /// True if the evaluation of the step from which this launch starts is still pending.
  [[nodiscard]] bool is_pending() const { return is_pending_; }

  /// Evaluates after `step`, reports the loss and returns it; empty if a rank's wants_stop() ended
  /// the evaluation. A non-finite loss is not recorded.
  ///
  /// Collective: every rank of the world.
  [[nodiscard]] std::optional<double> evaluate(std::int64_t step,
                                               const std::function<bool()>& wants_stop);

  /// True if the last train.patience evaluations brought no new lowest loss.
  [[nodiscard]] bool is_out_of_patience() const;
  /// True from a new lowest loss, which needs a checkpoint, until take_new_best().
  [[nodiscard]] bool has_new_best() const { return has_new_best_; }
  [[nodiscard]] bool take_new_best() { return std::exchange(has_new_best_, false); }
  [[nodiscard]] const ValidationRecord& record() const { return record_; }

  /// Fills in the evaluations of a run's summary.
  void add_to(metrics::RunSummary& summary) const;

 private:
  [[nodiscard]] std::optional<metrics::BestCheckpoint> best_checkpoint() const;

  const TrainContext& context_;
  data::EvaluationSequences sequences_;
  data::TextUnits units_;
  ValidationRecord record_;
  bool is_pending_;
  bool has_new_best_ = false;
  std::optional<metrics::EvaluationEvent> last_;
};

}  // namespace dtrain::train
