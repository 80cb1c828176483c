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

/// A run's evaluations, and their record. Equal on all ranks.
///
/// Threads: one.
class Validation {
 public:
  /// `context` must outlive this.
  Validation(const TrainContext& context, const StartPoint& start);

  /// Whether the step is to be evaluated; without validation data none is.
  [[nodiscard]] bool is_due(std::int64_t step) const;
  /// Whether the step at which the run starts still is.
  [[nodiscard]] bool is_owed() const { return is_owed_; }

  /// Evaluates after `step`, and reports the loss. Empty if a rank wants to stop: then nothing is
  /// known. A loss that is not finite stays out of the record.
  ///
  /// Collective: every rank of the world.
  [[nodiscard]] std::optional<double> evaluate(std::int64_t step,
                                               const std::function<bool()>& wants_stop);

  [[nodiscard]] bool is_out_of_patience() const;
  /// Whether there is a new lowest loss whose checkpoint is to be kept and was not taken yet.
  [[nodiscard]] bool has_new_best() const { return has_new_best_; }
  [[nodiscard]] bool take_new_best() { return std::exchange(has_new_best_, false); }
  [[nodiscard]] const ValidationRecord& record() const { return record_; }

  /// Sets what a run's summary says of evaluations.
  void add_to(metrics::RunSummary& summary) const;

 private:
  [[nodiscard]] std::optional<metrics::BestCheckpoint> best_checkpoint() const;

  const TrainContext& context_;
  data::EvaluationSequences sequences_;
  data::TextUnits units_;
  ValidationRecord record_;
  bool is_owed_;
  bool has_new_best_ = false;
  std::optional<metrics::EvaluationEvent> last_;
};

}  // namespace dtrain::train
