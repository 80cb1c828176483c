#include "dtrain/train/internal/validation.h"

#include <fmt/format.h>

#include <cmath>
#include <string>

#include "dtrain/base/io/path_kind.h"
#include "dtrain/checkpoint/store/names.h"

namespace dtrain::train {

Validation::Validation(const TrainContext& context, const StartPoint& start)
    : context_(context),
      sequences_(context.split.validation, context.config.report.eval_sequences.count),
      units_(data::units_of(context.split.validation.file())),
      record_(start.history.validation),
      is_pending_(is_due(start.step) &&
                  (start.step >= context.config.train.steps || !start.is_evaluated)) {}

bool Validation::is_due(std::int64_t step) const {
  const std::int64_t every = context_.config.report.eval_every;
  const bool is_in_interval = every > 0 && step > 0 && step % every == 0;
  return sequences_.size() > 0 && (step >= context_.config.train.steps || is_in_interval);
}

std::optional<double> Validation::evaluate(std::int64_t step,
                                           const std::function<bool()>& wants_stop) {
  const std::optional<double> loss =
      context_.engine.evaluate(sequences_, context_.config.batch.microbatch, wants_stop);
  if (!loss) return std::nullopt;
  last_ = {.step = step,
           .val_loss = *loss,
           .tokens = sequences_.tokens(),
           .bits_per_byte = units_.bits_per_byte(*loss),
           .perplexity_per_word = units_.perplexity_per_word(*loss),
           .data = record_.data};
  context_.reporter.report(*last_);
  if (!std::isfinite(*loss)) return loss;
  const bool is_best = record_.note(step, *loss);
  has_new_best_ = has_new_best_ || (is_best && context_.config.checkpoint.keep_best);
  return loss;
}

bool Validation::is_out_of_patience() const {
  const std::int64_t patience = context_.config.train.patience;
  return patience > 0 && record_.num_since_best >= patience;
}

// Empty before the first evaluation.
std::optional<metrics::BestCheckpoint> Validation::best_checkpoint() const {
  if (record_.best_step < 0) return std::nullopt;
  const std::string path = checkpoint::store::checkpoints_folder(context_.config.run.dir) + "/" +
                           checkpoint::store::checkpoint_name(record_.best_step);
  // A run that resumed from another run's checkpoint may have its best one there.
  const bool is_kept = context_.config.checkpoint.keep_best && base::path_exists(path);
  return metrics::BestCheckpoint{.step = record_.best_step,
                                 .val_loss = record_.best_loss,
                                 .path = is_kept ? path : std::string()};
}

void Validation::add_to(metrics::RunSummary& summary) const {
  const config::Config& config = context_.config;
  if (is_out_of_patience() && summary.steps < config.train.steps) {
    summary.reason = fmt::format("--patience {}", config.train.patience);
  }
  if (config.checkpoint.keep_best || config.train.patience > 0) summary.best = best_checkpoint();
  summary.validation = last_;
}

}  // namespace dtrain::train
