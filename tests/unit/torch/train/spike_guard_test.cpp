#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <vector>

#include "dtrain/train/numbers_guard.h"
#include "dtrain/train/run_history.h"
#include "dtrain/train/run_meter.h"
#include "support/messages.h"
#include "support/rounding.h"

namespace dtrain::train::spike_guard_test {
namespace {

// Figures that differ a little from step to step.
double figure(std::int64_t step) { return 2 + 0.1 * std::sin(static_cast<double>(step)); }

SpikeGuard guard_after(std::int64_t num_steps, double threshold) {
  SpikeGuard guard(threshold);
  for (std::int64_t step = 0; step < num_steps; ++step) guard.note(figure(step), 3 * figure(step));
  return guard;
}

TEST_CASE("A guard knows no limits before its warm-up is over") {
  CHECK_FALSE(guard_after(SpikeGuard::kWarmUpSteps - 1, 6).limits().any());
  CHECK(guard_after(SpikeGuard::kWarmUpSteps, 6).limits().any());
}

TEST_CASE("Limits are so many standard deviations above the mean") {
  constexpr std::int64_t kSteps = SpikeGuard::kWindow;  // as long as every step counts alike
  double sum = 0;
  double squares = 0;
  for (std::int64_t step = 0; step < kSteps; ++step) sum += figure(step);
  const double mean = sum / kSteps;
  for (std::int64_t step = 0; step < kSteps; ++step) squares += std::pow(figure(step) - mean, 2);
  const double deviation = std::sqrt(squares / kSteps);
  const auto limits = guard_after(kSteps, 4).limits();
  // A running mean and variance of figures near 2, whose deviation is 0.07: of each step a few
  // roundings, which the small variance magnifies.
  const double variance = deviation * deviation;
  const double bound = testing::rounding_bound(at::kDouble, 8.0 * kSteps) * mean * mean / variance;
  CHECK(limits.loss == Approx(mean + 4 * deviation).epsilon(bound));
  CHECK(limits.grad_norm == Approx(3 * (mean + 4 * deviation)).epsilon(bound));
}

TEST_CASE("One spike hides no other, and a lasting change is taken for the new level") {
  SpikeGuard guard = guard_after(200, 6);
  const double before = guard.limits().loss;
  guard.note(1000, 1000);
  CHECK(guard.limits().loss < 1.5 * before);
  int spikes = 0;
  while (4 > guard.limits().loss && spikes < 1000) {
    guard.note(4, 3 * figure(1));
    ++spikes;
  }
  CHECK(spikes > 0);
  CHECK(spikes < 50);
}

TEST_CASE("A figure that never moves has a limit above itself") {
  SpikeGuard guard(6);
  for (int step = 0; step < 300; ++step) guard.note(1.5, 0);
  CHECK(guard.limits().loss > 1.5);
  CHECK_FALSE(0 > guard.limits().grad_norm);
}

TEST_CASE("A history keeps every bit in its text") {
  RunHistory history{.data_step = 7, .spikes = guard_after(77, 6).statistics()};
  CHECK(history.validation.note(10, 1.0 / 3));
  CHECK_FALSE(history.validation.note(20, 0.4));
  CHECK_FALSE(history.validation.note(20, 0.1));  // evaluated again
  CHECK(history.validation.num_since_best == 1);
  CHECK(parse_history(to_text(history), "here") == history);
  history.validation.data = "9 samples";
  CHECK(parse_history(to_text(history), "here") == history);
  CHECK(to_text({}) == "{}");
  CHECK(parse_history("{}", "here") == RunHistory{});
  CHECK_THROWS_WITH(parse_history(R"({"spikes": {"num_steps": "x"}})", "PATH"),
                    testing::Names("PATH", "history"));
}

TEST_CASE("A record without its data is of the data of the run that saved it") {
  RunHistory history;
  CHECK(history.validation.note(10, 0.5));
  const data::DataIdentity data{.training = "9 samples", .validation = "3 samples"};
  const config::Config config;
  const auto saved = [&](const data::DataIdentity& identity) {
    checkpoint::format::Manifest manifest;
    manifest.history = to_text(history);
    manifest.data_fingerprint = data::to_text(identity);
    return history_of(manifest, config, "here").validation.data;
  };
  const std::string evaluated = evaluation_data(data, config);
  CHECK_THAT(evaluated, Catch::Contains("3 samples") && Catch::Contains("256"));
  CHECK(saved(data) == evaluated);
  // One whose run evaluated nothing, and one that keeps no checksum, may be of any.
  CHECK(saved({.training = "9 samples", .validation = "none"}).empty());
  CHECK(saved({.training = "9", .validation = "3 samples, fingerprint 7"}).empty());
  history.validation.data = "others";
  CHECK(saved(data) == "others");
}

TEST_CASE("The mean loss names the steps that it is of: the last 50") {
  RecentSteps recent;
  CHECK_FALSE(recent.loss().has_value());
  for (std::int64_t step = 1; step <= 60; ++step) {
    recent.note({.step = step, .loss = static_cast<double>(step), .seconds = 1});
  }
  const metrics::MeanLoss mean = recent.loss().value();
  CHECK(mean.first_step == 11);
  CHECK(mean.last_step == 60);
  CHECK(mean.num_losses == 50);
  CHECK(mean.loss == 35.5);  // of 11 to 60
}

TEST_CASE(
    "Losses that are not finite are no part of the mean, and steps without others have none") {
  RecentSteps recent;
  recent.note({.step = 1, .loss = std::numeric_limits<double>::quiet_NaN(), .seconds = 1});
  CHECK_FALSE(recent.loss().has_value());
  recent.note({.step = 2, .loss = 4, .seconds = 1});
  const metrics::MeanLoss mean = recent.loss().value();
  CHECK(mean.first_step == 1);
  CHECK(mean.last_step == 2);
  CHECK(mean.num_losses == 1);
  CHECK(mean.loss == 4);
}

TEST_CASE("The time of a step is the median") {
  RecentSteps recent;
  CHECK_FALSE(recent.seconds().has_value());
  for (const double seconds : {3.0, 1.0, 9.0}) recent.note({.step = 1, .seconds = seconds});
  CHECK(recent.seconds() == 3.0);
}

}  // namespace
}  // namespace dtrain::train::spike_guard_test
