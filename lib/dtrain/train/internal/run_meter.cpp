#include "dtrain/train/internal/run_meter.h"

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

constexpr std::size_t kMostRecent = 50;
constexpr std::int64_t kMemorySteps = 3;  // after which the peak of memory is known

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
  if (steps_.size() > kMostRecent) steps_.pop_front();
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

RunMeter::RunMeter(const TrainParts& parts, std::int64_t start_tokens)
    : parts_(parts),
      start_tokens_(start_tokens),
      tokens_(start_tokens),
      peak_({.measured = parts.peak_flops,
             .tensors = at::TensorOptions(parts.device()).dtype(parts.engine.precision().compute),
             .num_ranks = parts.world.size()}) {}

void RunMeter::begin() {
  start_ = base::Clock::now();
  restart_step();
  metrics::restart_peak(parts_.device());
}

void RunMeter::finish_step(const StepDone& done, const parallel::StepResult& result) {
  ++steps_done_;
  report(done, result);
  if (!peak_.is_due(steps_done_)) return;
  const base::Span span("measure the peak rate", base::TracePart::other);
  const auto begin = base::Clock::now();
  peak_.measure_again();
  step_start_ += base::Clock::now() - begin;  // not part of the next step
}

void RunMeter::report(const StepDone& done, const parallel::StepResult& result) {
  metrics::Reporter& reporter = parts_.reporter;
  const auto now = base::Clock::now();
  const double seconds = base::Seconds(now - step_start_).count();
  const comm::CallCounters counters = parts_.groups.counters();
  const double loss = result.loss.mean();
  tokens_ += result.loss.num_tokens;
  const double rate = static_cast<double>(result.loss.num_tokens) / seconds;
  const double flops = rate * parts_.model.training_flops_per_token();
  const std::int64_t memory = peak_memory();
  std::optional<base::LongPhase> writing(std::in_place, parts_.link.activity(), kWritingMetrics);
  reporter.report(metrics::StepEvent{
      .step = done.step,
      .loss = loss,
      .grad_norm = result.grad_norm,
      .learning_rate = done.learning_rate,
      .tokens = tokens_,
      .samples = done.samples,
      .tokens_per_second = rate,
      .step_seconds = seconds,
      .wait_seconds = counters.wait_seconds - counters_.wait_seconds,
      .mfu = peak_.utilization(flops),
      .memory_bytes = memory,
      .comm_bytes = counters.bytes_sent - counters_.bytes_sent,
      .loss_scaling = loss_scaling(parts_.engine),
      .compression = reporter.writes() ? compression(parts_.engine) : std::nullopt});
  if (const double recovery = parts_.link.take_recovery(); recovery > 0) {
    reporter.report(metrics::RecoveryEvent{.step = done.step, .seconds = recovery});
  }
  const std::int64_t peak = peak_memory();
  const bool is_counted = peak > 0;  // by the allocator that the program installs
  if (steps_done_ == kMemorySteps && is_counted) {
    reporter.report(metrics::MemoryEvent{
        .step = done.step, .predicted = parts_.predicted.memory, .peak = peak});
  }
  writing.reset();
  parts_.link.progress(done.step, counters.wait_seconds);
  recent_.note({.step = done.step, .loss = loss, .seconds = seconds});
  counters_ = counters;
  step_start_ = now;
}

void RunMeter::restart_step() {
  counters_ = parts_.groups.counters();
  step_start_ = base::Clock::now();
}

void RunMeter::exclude_since(base::Clock::time_point begin) {
  counters_ = parts_.groups.counters();
  step_start_ += base::Clock::now() - begin;
}

void RunMeter::end_unpredicted() {
  metrics::restart_peak(parts_.device());
  restart_step();
}

// Of all that the prediction knows.
std::int64_t RunMeter::peak_memory() const {
  return std::max(peak_before_, metrics::memory_use(parts_.device()).peak);
}

metrics::RunSummary RunMeter::summary(std::int64_t step) {
  spent_.total = base::seconds_since(start_);
  const config::LayoutConfig& layout = parts_.config.layout;
  const std::int64_t peak = peak_memory();
  const bool is_counted = peak > 0 && steps_done_ > 0;
  return {.steps = step,
          .steps_here = steps_done_,
          .train_loss = recent_.loss(),
          .step_seconds = {recent_.seconds(), parts_.predicted.step_seconds},
          .median_steps = recent_.size(),
          .memory_ranks = config::strategy_of(layout).is_local() ? layout.local_ranks : 1,
          .memory = {is_counted ? std::optional(peak) : std::nullopt, parts_.predicted.peak_memory},
          .time = spent_,
          .tokens_per_second = static_cast<double>(tokens_ - start_tokens_) / spent_.total,
          .model_path = checkpoint::store::final_model(parts_.config.run.dir)};
}

}  // namespace dtrain::train
