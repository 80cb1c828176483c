// What the training loop measures and reports.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "dtrain/base/path_kind.h"
#include "dtrain/base/trace.h"
#include "dtrain/checkpoint/store/locate.h"
#include "dtrain/checkpoint/store/names.h"
#include "dtrain/config/layout.h"
#include "dtrain/metrics/tensor_memory.h"
#include "dtrain/train/trainer.h"

namespace dtrain::train {
namespace {

constexpr std::int64_t kMemorySteps = 3;  // after which the peak of memory is known

}  // namespace

void Trainer::report(const parallel::StepResult& result) {
  const auto now = base::Clock::now();
  const double seconds = base::Seconds(now - step_start_).count();
  const comm::CallCounters counters = groups_.counters();
  const double loss = result.loss.mean();
  tokens_ += result.loss.num_tokens;
  const double rate = static_cast<double>(result.loss.num_tokens) / seconds;
  const double flops = rate * model_.training_flops_per_token();
  const std::int64_t memory = peak_memory();
  std::optional<base::LongPhase> writing(std::in_place, link_.activity(), kWritingMetrics);
  reporter_.step({.step = step_,
                  .loss = loss,
                  .grad_norm = result.grad_norm,
                  .learning_rate = schedule_.rate(step_ - 1),
                  .tokens = tokens_,
                  .samples = loader_.position(),
                  .tokens_per_second = rate,
                  .step_seconds = seconds,
                  .wait_seconds = counters.wait_seconds - counters_.wait_seconds,
                  .mfu = peak_.utilization(flops),
                  .memory_bytes = memory,
                  .comm_bytes = counters.bytes_sent - counters_.bytes_sent,
                  .loss_scaling = loss_scaling(),
                  .compression = reporter_.writes() ? compression() : std::nullopt});
  if (const double recovery = link_.take_recovery(); recovery > 0) {
    reporter_.recovery(step_, recovery);
  }
  report_memory();
  writing.reset();
  link_.progress(step_, counters.wait_seconds);
  recent_.note({.step = step_, .loss = loss, .seconds = seconds});
  counters_ = counters;
  step_start_ = now;
}

// About the step that is being made.
void Trainer::warn_of_step(const std::string& message) {
  const base::LongPhase writing(link_.activity(), kWritingMetrics);
  reporter_.warn(step_ + 1, message);
}

// Of all but samples, which the prediction does not know.
std::int64_t Trainer::peak_memory() const {
  return std::max(peak_before_sample_, metrics::memory_use(device()).peak);
}

void Trainer::report_memory() {
  const std::int64_t peak = peak_memory();
  const bool is_counted = peak > 0;  // by the allocator that the program installs
  if (steps_done_ != kMemorySteps || !is_counted) return;
  reporter_.memory({.step = step_, .predicted = predicted_.memory, .peak = peak});
}

// On all ranks at once, right after a common step.
void Trainer::measure_peak() {
  if (!peak_.is_due(steps_done_)) return;
  const base::Span span("measure the peak rate", base::TracePart::other);
  const auto begin = base::Clock::now();
  peak_.measure_again();
  step_start_ += base::Clock::now() - begin;  // not part of the next step
}

c10::Device Trainer::device() const { return engine_.gradients().flat().device(); }

std::optional<metrics::LossScaling> Trainer::loss_scaling() {
  const optim::GradScaler* scaler = engine_.scaler();
  if (scaler == nullptr) return std::nullopt;
  return metrics::LossScaling{.scale = scaler->scale(), .skipped_steps = scaler->num_skipped()};
}

std::optional<metrics::Compression> Trainer::compression() const {
  const std::optional<parallel::CompressionReport> report = engine_.compression();
  if (!report) return std::nullopt;
  return metrics::Compression{.bytes_saved = report->bytes_whole - report->bytes_sent,
                              .residual_norm = report->residual_norm,
                              .seconds = report->seconds};
}

// None where nothing was evaluated.
std::optional<metrics::BestCheckpoint> Trainer::best_checkpoint() const {
  const ValidationRecord& record = validation_record_;
  if (record.best_step < 0) return std::nullopt;
  const std::string path = checkpoint::store::checkpoints_folder(config_.run.dir) + "/" +
                           checkpoint::store::checkpoint_name(record.best_step);
  // A run that goes on from another one's checkpoint may have its best one there.
  const bool is_kept = config_.checkpoint.keep_best && base::is_there(path);
  return metrics::BestCheckpoint{.step = record.best_step,
                                 .val_loss = record.best_loss,
                                 .path = is_kept ? path : std::string()};
}

void Trainer::summarize() {
  spent_.total = base::seconds_since(start_);
  const bool tells_best = config_.checkpoint.keep_best || config_.train.patience > 0;
  const std::int64_t peak = peak_memory();
  const bool is_counted = peak > 0 && steps_done_ > 0;
  reporter_.end(
      {.steps = step_,
       .steps_here = steps_done_,
       .reason = is_out_of_patience() && step_ < config_.train.steps
                     ? fmt::format("--patience {}", config_.train.patience)
                     : std::string(),
       .best = tells_best ? best_checkpoint() : std::nullopt,
       .train_loss = recent_.loss(),
       .step_seconds = {recent_.seconds(), predicted_.step_seconds},
       .median_steps = recent_.size(),
       .memory_ranks =
           config::strategy_of(config_.layout).is_local() ? config_.layout.local_ranks : 1,
       .memory = {is_counted ? std::optional(peak) : std::nullopt, predicted_.peak_memory},
       .validation = last_evaluation_,
       .time = spent_,
       .tokens_per_second = static_cast<double>(tokens_ - start_tokens_) / spent_.total,
       .model_path = checkpoint::store::final_model(config_.run.dir),
       .skipped_updates = skipped_,
       .failed_checkpoints = checkpoints_.num_failures()});
}

}  // namespace dtrain::train
