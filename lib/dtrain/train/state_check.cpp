#include "dtrain/train/state_check.h"

#include <fmt/format.h>

#include <cmath>
#include <string>

#include "dtrain/checkpoint/state.h"
#include "dtrain/comm/exchange.h"
#include "dtrain/metrics/format.h"

namespace dtrain::train {
namespace {

// The name of a tensor of the run's state that is not finite on some rank; empty if all are finite.
std::string nonfinite_tensor(const checkpoint::State& state, comm::ProcessGroup& world) {
  const std::string own = checkpoint::first_not_finite(owned_part(state));
  for (const std::string& name : comm::exchange_texts(world, own)) {
    if (!name.empty()) return name;
  }
  return {};
}

}  // namespace

StateCheck::StateCheck(const Options& options)
    : options_(options),
      probe_(options.split.train.first(),
             options.config.batch.microbatch * options.groups.along(mesh::Axis::dp).size()) {}

void StateCheck::make_copies_equal(std::int64_t step) {
  if (!options_.are_cpus_mixed || equalized_step_ == step) return;
  options_.engine.whole_model().make_copies_equal();
  equalized_step_ = step;
}

std::optional<NumericalFailure> StateCheck::note_evaluated(std::int64_t step, double loss) {
  if (!std::isfinite(loss)) {
    return NumericalFailure{
        fmt::format("after step {}: the validation loss is {}, so this step was not saved", step,
                    metrics::format_number(loss)),
        advice_on_nonfinite(options_.engine)};
  }
  evaluated_step_ = step;
  return std::nullopt;
}

std::optional<NumericalFailure> StateCheck::find_failure(std::int64_t step) {
  const auto begin = base::Clock::now();
  if (checked_step_ != step) {
    make_copies_equal(step);
    if (auto failure = check_tensors(step)) return failure;
    if (auto failure = check_loss(step)) return failure;
    checked_step_ = step;
  }
  options_.clock.exclude_since(begin);
  return std::nullopt;
}

std::optional<NumericalFailure> StateCheck::check_tensors(std::int64_t step) {
  const std::string name = nonfinite_tensor(options_.engine.whole_model().state(), options_.world);
  if (name.empty()) return std::nullopt;
  return NumericalFailure{
      fmt::format(
          "after step {}: '{}' holds values that are not finite, so this step was not saved", step,
          name),
      name.starts_with(checkpoint::kWeightPrefix) ? advice_on_nonfinite(options_.engine)
                                                  : "give --grad-clip, or lower it or --lr"};
}

std::optional<NumericalFailure> StateCheck::check_loss(std::int64_t step) {
  if (evaluated_step_ == step) return std::nullopt;
  const double loss = options_.engine.evaluate(probe_, options_.config.batch.microbatch).value();
  if (std::isfinite(loss)) return std::nullopt;
  return NumericalFailure{
      fmt::format("after step {}: the loss on training text is {}, so this step was not saved",
                  step, metrics::format_number(loss)),
      advice_on_nonfinite(options_.engine)};
}

}  // namespace dtrain::train
