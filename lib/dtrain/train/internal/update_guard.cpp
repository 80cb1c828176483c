#include "dtrain/train/internal/update_guard.h"

#include <fmt/format.h>

#include <cmath>

#include "dtrain/config/schema/rows.h"
#include "dtrain/metrics/format.h"

namespace dtrain::train {
namespace {

using metrics::format_number;

// "loss 9.1 is above 3.4, gradient norm ..."; empty if both are within the limits.
std::string describe_spike(const parallel::StepResult& result, const parallel::StepLimits& limits) {
  std::string text;
  const auto add = [&](std::string_view name, double value, double limit) {
    if (value <= limit) return;
    text +=
        fmt::format("{}{} {:.4g} is above {:.4g}", text.empty() ? "" : ", ", name, value, limit);
  };
  add("loss", result.loss.mean(), limits.loss);
  add("gradient norm", result.grad_norm, limits.grad_norm);
  return text;
}

}  // namespace

parallel::StepLimits UpdateGuard::begin_step(std::int64_t step) {
  const config::Config& config = context_.config;
  // Norms of uncompressed gradients say nothing about those of compressed ones.
  const bool is_end_of_warmup = step == config.machine.compress_warmup;
  if (is_end_of_warmup && config::conditions::kCompresses(config)) spikes_.reset();
  limits_ = spikes_.limits();
  const bool skips_spikes = config.train.spike_guard == config::SpikeGuard::skip;
  return skips_spikes ? limits_ : parallel::StepLimits{};
}

// A skipped update leaves the weights unchanged, so after several in a row the next step will not be
// better. In float16 each halves the loss scale.
std::optional<NumericalFailure> UpdateGuard::end_step(std::int64_t step,
                                                      const parallel::StepResult& result) {
  const config::TrainConfig& train = context_.config.train;
  const std::string found =
      fmt::format("step {}: loss {}, gradient norm {}", step, format_number(result.loss.mean()),
                  format_number(result.grad_norm));
  if (!result.is_finite() && !result.has_overflowed) {
    if (train.on_nonfinite == config::OnNonfinite::stop) {
      return NumericalFailure{found + ": stopped before the update",
                              advice_on_nonfinite(context_.engine) + ", or --on-nonfinite skip"};
    }
    warn(step, found + ": update skipped");
  }
  if (result.is_finite() && train.spike_guard != config::SpikeGuard::off) {
    spikes_.note(result.loss.mean(), result.grad_norm);
    const std::string spike = describe_spike(result, limits_);
    if (!spike.empty() || result.exceeds_limits) {
      warn(step, fmt::format("step {}: spike: {}{}", step, spike,
                             result.exceeds_limits ? ": update skipped" : ""));
    }
  }
  if (result.is_finite() && !result.exceeds_limits) {
    skipped_in_a_row_ = 0;
    return std::nullopt;
  }
  ++num_skipped_;
  if (++skipped_in_a_row_ <= train.max_skipped) return std::nullopt;
  return NumericalFailure{
      fmt::format("{}: {} update{} in a row {} skipped, more than --max-skipped {}", found,
                  skipped_in_a_row_, skipped_in_a_row_ == 1 ? "" : "s",
                  skipped_in_a_row_ == 1 ? "was" : "were", train.max_skipped),
      advice_on_skips(result)};
}

void UpdateGuard::warn(std::int64_t step, const std::string& message) {
  const base::LongPhase writing(context_.link.activity(), kWritingMetrics);
  context_.reporter.warn(step, message);
}

// A run with a loss scale begins with skipped updates, until the scale fits.
std::string UpdateGuard::advice_on_skips(const parallel::StepResult& result) const {
  const std::string advice = advice_on_nonfinite(context_.engine);
  if (result.exceeds_limits) return "raise --spike-threshold, or " + advice;
  const optim::GradScaler* scaler = context_.engine.scaler();
  if (scaler == nullptr || !std::isfinite(result.loss.mean())) return advice;
  return fmt::format(
      "each halved the loss scale, which is {:g} now: the first ones are normal, so raise "
      "--max-skipped; if they go on, {}",
      scaler->scale(), advice);
}

}  // namespace dtrain::train
