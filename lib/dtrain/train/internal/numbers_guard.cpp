#include "dtrain/train/internal/numbers_guard.h"

#include <fmt/format.h>

#include <cmath>

#include "dtrain/checkpoint/state.h"
#include "dtrain/comm/exchange.h"
#include "dtrain/config/schema/rows.h"
#include "dtrain/metrics/format.h"

namespace dtrain::train {
namespace {

using metrics::format_number;

// "loss 9.1 is above 3.4, gradient norm ..."; empty: neither is beyond the limits.
std::string describe_spike(const parallel::StepResult& result, const parallel::StepLimits& limits) {
  std::string text;
  const auto tell = [&](std::string_view name, double value, double limit) {
    if (value <= limit) return;
    text +=
        fmt::format("{}{} {:.4g} is above {:.4g}", text.empty() ? "" : ", ", name, value, limit);
  };
  tell("loss", result.loss.mean(), limits.loss);
  tell("gradient norm", result.grad_norm, limits.grad_norm);
  return text;
}

// The name of a tensor of the run's state that is not finite on some rank; empty: all are.
std::string bad_tensor(const parallel::StepEngine& engine, comm::ProcessGroup& world) {
  const std::string own = checkpoint::first_not_finite(owned_part(engine.state()));
  for (const std::string& name : comm::exchange_texts(world, own)) {
    if (!name.empty()) return name;
  }
  return {};
}

}  // namespace

std::string advice_on_numbers(const parallel::StepEngine& engine) {
  return engine.precision().scales_loss
             ? "use bfloat16 or float32 in place of float16, whose range is small, or lower --lr"
             : "lower --lr";
}

parallel::StepLimits StepGuard::begin_step(std::int64_t step) {
  const config::Config& config = parts_.config;
  // What norms were while gradients were sent whole says nothing of compressed ones.
  const bool is_end_of_warmup = step == config.machine.compress_warmup;
  if (is_end_of_warmup && config::conditions::kCompresses(config)) spikes_.forget();
  limits_ = spikes_.limits();
  const bool skips_spikes = config.train.spike_guard == config::SpikeGuard::skip;
  return skips_spikes ? limits_ : parallel::StepLimits{};
}

// An update that is left out changes nothing, so that one too many in a row shows that more will
// not help. In float16 the loss's scale halves with each.
std::optional<BadNumbers> StepGuard::end_step(std::int64_t step,
                                              const parallel::StepResult& result) {
  const config::TrainConfig& train = parts_.config.train;
  const std::string found =
      fmt::format("step {}: loss {}, gradient norm {}", step, format_number(result.loss.mean()),
                  format_number(result.grad_norm));
  if (!result.is_finite() && !result.has_overflowed) {
    if (train.on_nonfinite == config::OnNonfinite::stop) {
      return BadNumbers{found + ": stopped before the update",
                        advice_on_numbers(parts_.engine) + ", or --on-nonfinite skip"};
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
  return BadNumbers{fmt::format("{}: {} update{} in a row {} skipped, more than --max-skipped {}",
                                found, skipped_in_a_row_, skipped_in_a_row_ == 1 ? "" : "s",
                                skipped_in_a_row_ == 1 ? "was" : "were", train.max_skipped),
                    advice_on_skips(result)};
}

void StepGuard::warn(std::int64_t step, const std::string& message) {
  const base::LongPhase writing(parts_.link.activity(), kWritingMetrics);
  parts_.reporter.warn(step, message);
}

// With a loss scale a run begins with updates that are left out, until the scale fits.
std::string StepGuard::advice_on_skips(const parallel::StepResult& result) const {
  const std::string advice = advice_on_numbers(parts_.engine);
  if (result.exceeds_limits) return "raise --spike-threshold, or " + advice;
  const optim::GradScaler* scaler = parts_.engine.scaler();
  if (scaler == nullptr || !std::isfinite(result.loss.mean())) return advice;
  return fmt::format(
      "each halved the loss scale, which is {:g} now: the first ones are normal, so raise "
      "--max-skipped; if they go on, {}",
      scaler->scale(), advice);
}

StateGuard::StateGuard(const TrainParts& parts)
    : parts_(parts),
      probe_(parts.split.train.first(),
             parts.config.batch.microbatch * parts.groups.along(mesh::Axis::dp).size()) {}

void StateGuard::make_copies_equal(std::int64_t step) {
  if (!parts_.are_cpus_mixed || equal_step_ == step) return;
  parts_.engine.make_copies_equal();
  equal_step_ = step;
}

std::optional<BadNumbers> StateGuard::find_bad(std::int64_t step) {
  if (checked_step_ == step) return std::nullopt;
  make_copies_equal(step);
  const std::string advice = advice_on_numbers(parts_.engine);
  const std::string name = bad_tensor(parts_.engine, parts_.world);
  if (!name.empty()) {
    return BadNumbers{
        fmt::format("after step {}: '{}' holds values that are not finite, so nothing of it was "
                    "saved",
                    step, name),
        name.starts_with(checkpoint::kWeightPrefix) ? advice
                                                    : "give --grad-clip, or lower it or --lr"};
  }
  if (evaluated_step_ != step) {
    const double loss = parts_.engine.evaluate(probe_, parts_.config.batch.microbatch).value();
    if (!std::isfinite(loss)) {
      return BadNumbers{
          fmt::format("after step {}: the loss on training text is {}, so nothing of it was saved",
                      step, format_number(loss)),
          advice};
    }
  }
  checked_step_ = step;
  return std::nullopt;
}

}  // namespace dtrain::train
