#include "dtrain/train/internal/step_metrics.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "dtrain/base/trace.h"
#include "dtrain/checkpoint/store/names.h"
#include "dtrain/config/values/layout.h"
#include "dtrain/metrics/tensor_memory.h"

namespace dtrain::train {
namespace {

constexpr std::size_t kMaxRecent = 50;
constexpr std::int64_t kMemorySteps = 3;  // steps that reach the memory peak

std::optional<metrics::LossScaling> loss_scaling(const parallel::StepEngine& engine) {
  const optim::GradScaler* scaler = engine.scaler();
  if (scaler == nullptr) return std::nullopt;
  return metrics::LossScaling{.scale = scaler->scale(), .skipped_steps = scaler->num_skipped()};
}

std::optional<metrics::CompressionStats> compression(const parallel::StepEngine& engine) {
  const std::optional<parallel::CompressionReport> report = engine.compression();
  if (!report) return std::nullopt;
  return metrics::CompressionStats{.bytes_saved = report->bytes_whole - report->bytes_sent,
                                   .residual_norm = report->residual_norm,
                                   .seconds = report->seconds};
}

}  // namespace

void RecentSteps::note(const Step& step) {
  steps_.push_back(step);
  if (steps_.size() > kMaxRecent) steps_.pop_front();
}

std::optional<metrics::MeanLoss> RecentSteps::loss() const {
  metrics::MeanLoss mean;
  for (const Step& each : steps_) {
    if (!std::isfinite(each.loss)) continue;
    mean.loss += each.loss;
    ++mean.num_losses;
  }
  if (mean.num_losses == 0) return std::nullopt;
  mean.loss /= static_cast<double>(mean.num_losses);
  mean.first_step = steps_.front().step;
  mean.last_step = steps_.back().step;
  return mean;
}

std::optional<double> RecentSteps::seconds() const {
  if (steps_.empty()) return std::nullopt;
  std::vector<double> sorted;
  for (const Step& each : steps_) sorted.push_back(each.seconds);
  std::ranges::sort(sorted);
  return sorted[sorted.size() / 2];
}

StepMetrics::StepMetrics(const TrainContext& context, std::int64_t start_tokens)
    : context_(context),
      start_tokens_(start_tokens),
      tokens_(start_tokens),
      peak_flops_(
          {.measured = context.peak_flops,
           .tensors = at::TensorOptions(context.device()).dtype(context.engine.precision().compute),
           .num_ranks = context.world.size()}) {}

void StepMetrics::begin() {
  start_ = base::Clock::now();
  context_.clock.restart();
  metrics::restart_peak(context_.device());
}

void StepMetrics::finish_step(const StepDone& done, const parallel::StepResult& result) {
  ++steps_done_;
  report(done, result);
  if (!peak_flops_.is_due(steps_done_)) return;
  const base::Span span("measure the peak rate", base::TracePart::other);
  const auto begin = base::Clock::now();
  peak_flops_.measure_again();
  context_.clock.exclude(base::Clock::now() - begin);
}

void StepMetrics::report(const StepDone& done, const parallel::StepResult& result) {
  metrics::Reporter& reporter = context_.reporter;
  const StepClock::Lap lap = context_.clock.lap();
  const double loss = result.loss.mean();
  tokens_ += result.loss.num_tokens;
  const double rate = static_cast<double>(result.loss.num_tokens) / lap.seconds;
  const double flops = rate * context_.model.training_flops_per_token();
  const std::int64_t memory = peak_memory();
  std::optional<base::LongPhase> writing(std::in_place, context_.link.activity(), kWritingMetrics);
  reporter.report(metrics::StepEvent{
      .step = done.step,
      .loss = loss,
      .grad_norm = result.grad_norm,
      .learning_rate = done.learning_rate,
      .tokens = tokens_,
      .samples = done.samples,
      .tokens_per_second = rate,
      .step_seconds = lap.seconds,
      .wait_seconds = lap.wait_seconds,
      .mfu = peak_flops_.utilization(flops),
      .memory_bytes = memory,
      .comm_bytes = lap.bytes_sent,
      .loss_scaling = loss_scaling(context_.engine),
      .compression = reporter.writes() ? compression(context_.engine) : std::nullopt});
  if (const double recovery = context_.link.take_recovery(); recovery > 0) {
    reporter.report(metrics::RecoveryEvent{.step = done.step, .seconds = recovery});
  }
  const std::int64_t peak = peak_memory();
  const bool is_counted = peak > 0;  // false without the allocator that the program installs
  if (steps_done_ == kMemorySteps && is_counted) {
    reporter.report(metrics::MemoryEvent{
        .step = done.step, .predicted = context_.predicted.memory, .peak = peak});
  }
  writing.reset();
  context_.link.progress(done.step, lap.total_wait_seconds);
  recent_.note({.step = done.step, .loss = loss, .seconds = lap.seconds});
}

void StepMetrics::end_unpredicted() {
  metrics::restart_peak(context_.device());
  context_.clock.restart();
}

// The peak of everything that the prediction covers.
std::int64_t StepMetrics::peak_memory() const {
  return std::max(peak_before_, metrics::memory_use(context_.device()).peak);
}

metrics::RunSummary StepMetrics::summary(std::int64_t step) {
  spent_.total = base::seconds_since(start_);
  const config::LayoutConfig& layout = context_.config.layout;
  const std::int64_t peak = peak_memory();
  const bool is_counted = peak > 0 && steps_done_ > 0;
  return {
      .steps = step,
      .steps_here = steps_done_,
      .train_loss = recent_.loss(),
      .step_seconds = {recent_.seconds(), context_.predicted.step_seconds},
      .median_steps = recent_.size(),
      .memory_ranks = config::strategy_of(layout).is_local() ? layout.local_ranks : 1,
      .memory = {is_counted ? std::optional(peak) : std::nullopt, context_.predicted.peak_memory},
      .time = spent_,
      .tokens_per_second = static_cast<double>(tokens_ - start_tokens_) / spent_.total,
      .model_path = checkpoint::store::final_model(context_.config.run.dir)};
}

}  // namespace dtrain::train
