#include "dtrain/train/internal/spike_detector.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "dtrain/train/internal/run_history.h"
#include "dtrain/train/internal/step_metrics.h"
#include "support/messages.h"
#include "support/oracles/rounding.h"

namespace dtrain::train::spike_detector_test {
namespace {

constexpr double kThreshold = 6;

// Figures whose logarithms are normal, about: the sum of twelve uniform numbers less their mean.
class Noise {
 public:
  explicit Noise(double deviation) : deviation_(deviation) {}

  double next() {
    double sum = -6;
    for (int i = 0; i < 12; ++i) sum += std::ldexp(static_cast<double>(bits_()), -32);
    return std::exp(deviation_ * sum);
  }

 private:
  std::mt19937 bits_{5};
  double deviation_;
};

SpikeDetector guard_after(std::int64_t num_steps, double threshold, double deviation = 0.1) {
  SpikeDetector guard(threshold);
  Noise noise(deviation);
  for (std::int64_t step = 0; step < num_steps; ++step) {
    const double figure = noise.next();
    guard.note(2 * figure, 6 * figure);
  }
  return guard;
}

bool is_spike(const SpikeDetector& guard, double loss, double norm) {
  const auto limits = guard.limits();
  return loss > limits.loss || norm > limits.grad_norm;
}

// How many of `num_steps` steps whose norms are `level` times the noise are spikes.
int spikes_at(double level, int num_steps, Noise& noise, SpikeDetector& guard) {
  int spikes = 0;
  for (int step = 0; step < num_steps; ++step) {
    const double norm = level * noise.next();
    spikes += is_spike(guard, 2, norm);
    guard.note(2, norm);
  }
  return spikes;
}

TEST_CASE("There are no limits before the warm-up is over") {
  CHECK_FALSE(guard_after(SpikeDetector::kWarmUpSteps - 1, kThreshold).limits().any());
  CHECK(guard_after(SpikeDetector::kWarmUpSteps, kThreshold).limits().any());
}

TEST_CASE("Limits are `threshold` standard deviations of the logarithms above their mean") {
  constexpr int kSteps = 200;  // as long as step k counts with k (k + 1)
  constexpr double kDeviation = 0.3;
  Noise noise(kDeviation);
  std::vector<double> logarithms;
  std::vector<double> weights;
  for (int step = 1; step <= kSteps; ++step) {
    logarithms.push_back(std::log(noise.next()));
    weights.push_back(3.0 * step * (step + 1) / kSteps / (kSteps + 1) / (kSteps + 2));
  }
  double mean = 0;
  double variance = 0;
  for (int i = 0; i < kSteps; ++i) mean += weights[i] * logarithms[i];
  for (int i = 0; i < kSteps; ++i) variance += weights[i] * std::pow(logarithms[i] - mean, 2);
  const auto limits = guard_after(kSteps, 4, kDeviation).limits();
  // A running mean and variance: of each step a few roundings, relative to values of up to 2.
  const double bound = testing::rounding_bound(at::kDouble, 32.0 * kSteps) * 4 / variance;
  const double factor = std::exp(mean + 4 * std::sqrt(variance));
  CHECK(limits.loss == Approx(2 * factor).epsilon(bound));
  CHECK(limits.grad_norm == Approx(6 * factor).epsilon(bound));
}

TEST_CASE("Log-normal norms of healthy runs are no spikes") {
  for (const double deviation : {0.02, 0.1, 0.2, 0.4}) {
    SpikeDetector guard(kThreshold);
    Noise noise(deviation);
    CHECK(spikes_at(1, 20'000, noise, guard) == 0);
  }
}

TEST_CASE("Norms that fall or rise steadily are no spikes") {
  for (const double rate : {0.9, 0.99, 1.01, 1.1}) {
    SpikeDetector guard(kThreshold);
    Noise noise(0.05);
    double level = 1;
    for (int step = 0; step < 300; ++step) {
      CHECK(spikes_at(level, 1, noise, guard) == 0);
      level *= rate;
    }
  }
}

TEST_CASE("The initial fall of the norm does not hide a tenfold spike after the warm-up") {
  SpikeDetector guard(kThreshold);
  Noise noise(0.1);
  for (int step = 0; step < SpikeDetector::kWarmUpSteps; ++step) {
    CHECK(spikes_at(std::max(4 * std::pow(0.95, step), 0.7), 1, noise, guard) == 0);
  }
  for (int step = 0; step < 200; ++step) {
    CHECK(is_spike(guard, 2, 7));
    CHECK(spikes_at(0.7, 1, noise, guard) == 0);
  }
}

TEST_CASE("One spike hides no other") {
  for (const double factor : {10.0, 100.0, 1e30}) {
    SpikeDetector guard(kThreshold);
    Noise noise(0.2);
    CHECK(spikes_at(1, 300, noise, guard) == 0);
    for (int spike = 0; spike < 20; ++spike) {
      CHECK(spikes_at(factor, 1, noise, guard) == 1);
      CHECK(spikes_at(1, 50, noise, guard) == 0);
    }
    CHECK(is_spike(guard, 10, 1));  // of the loss, whose level is its own
  }
}

// Chebyshev: no distribution has more than 1/Z² of its values beyond Z deviations.
TEST_CASE("Norms too frequent to be spikes raise the limits") {
  SpikeDetector guard(kThreshold);
  Noise noise(0.2);
  CHECK(spikes_at(1, 300, noise, guard) == 0);
  int spikes = 0;
  for (int cycle = 0; cycle < 40; ++cycle) {
    spikes = spikes_at(10, 1, noise, guard);
    CHECK(spikes_at(1, 19, noise, guard) == 0);
  }
  CHECK(spikes == 0);
}

TEST_CASE("Three steps in a row above or below the limits set a new level") {
  for (const double factor : {10.0, 100.0, 1e6}) {
    SpikeDetector guard(kThreshold);
    Noise noise(0.1);
    CHECK(spikes_at(1, 300, noise, guard) == 0);
    for (int repetition = 0; repetition < 3; ++repetition) {
      CHECK(spikes_at(factor, 300, noise, guard) == SpikeDetector::kNewLevelSteps);
      CHECK(is_spike(guard, 2, 10 * factor));
      CHECK(spikes_at(1, 300, noise, guard) == 0);
      CHECK(is_spike(guard, 2, 10));
    }
  }
}

TEST_CASE("A constant figure has a limit above itself") {
  SpikeDetector guard(kThreshold);
  for (int step = 0; step < 300; ++step) guard.note(1.5, 1e-30);
  CHECK(guard.limits().loss > 1.5);
  CHECK(guard.limits().loss < 1.6);
  CHECK(guard.limits().grad_norm > 1.7e-30);  // a breath of noise is no spike
  CHECK(guard.limits().grad_norm < 2e-30);
}

TEST_CASE("A figure of 0 is no spike and changes no limit") {
  SpikeDetector guard(kThreshold);
  for (int step = 0; step < 300; ++step) guard.note(0, 0);
  CHECK_FALSE(guard.limits().any());
  guard = guard_after(200, kThreshold);
  const auto limits = guard.limits();
  for (int step = 0; step < 10; ++step) guard.note(0, 0);
  CHECK(guard.limits().loss == limits.loss);
  CHECK(guard.limits().grad_norm == limits.grad_norm);
}

TEST_CASE("A detector saved amid spikes continues as if never interrupted") {
  SpikeDetector guard = guard_after(200, kThreshold);
  guard.note(2, 600);
  guard.note(2, 700);
  const RunHistory history{.spikes = guard.statistics()};
  SpikeDetector resumed(kThreshold, parse_history(to_text(history), "here").spikes);
  guard.note(2, 650);
  resumed.note(2, 650);
  CHECK(resumed.statistics() == guard.statistics());
  CHECK_FALSE(is_spike(resumed, 2, 650));
}

TEST_CASE("Statistics of an older dtrain are converted assuming log-normal figures") {
  const auto parsed = [](const std::string& norm) {
    return parse_history(R"({"spikes": {"num_steps": 300, "loss": {"mean": 2.0, "variance": 0.04},
                         "grad_norm": )" +
                             norm + "}}",
                         "here")
        .spikes;
  };
  const SpikeStatistics spikes = parsed(R"({"mean": 0.5, "variance": 0.01})");
  CHECK(spikes.loss.num_steps == 300);
  CHECK(spikes.grad_norm.variance == Approx(std::log(1.04)));
  CHECK(spikes.grad_norm.mean == Approx(std::log(0.5) - std::log(1.04) / 2));
  const SpikeDetector guard(kThreshold, spikes);
  CHECK_FALSE(is_spike(guard, 2, 1));
  CHECK(is_spike(guard, 2, 5));
  for (const char* norm :
       {R"({"mean": 0.0, "variance": 0.0})", R"({"mean": 1.0, "variance": -1.0})",
        R"({"mean": 1e-300, "variance": 1e300})"}) {
    CHECK(parsed(norm).grad_norm == FigureLevel{});
  }
}

TEST_CASE("A history round-trips through text with every bit") {
  RunHistory history{
      .data_step = 7, .spikes = guard_after(77, kThreshold).statistics(), .skipped_in_a_row = 5};
  CHECK(history.validation.note(10, 1.0 / 3));
  CHECK_FALSE(history.validation.note(20, 0.4));
  CHECK_FALSE(history.validation.note(20, 0.1));  // evaluated again
  CHECK(history.validation.num_since_best == 1);
  CHECK(parse_history(to_text(history), "here") == history);
  history.validation.data = "9 samples";
  CHECK(parse_history(to_text(history), "here") == history);
  CHECK(to_text({}) == "{}");
  CHECK(parse_history("{}", "here") == RunHistory{});
  for (const char* text :
       {R"({"spikes": {"num_steps": "x"}})", R"({"spike_levels": {"loss": {}}})"}) {
    CHECK_THROWS_WITH(parse_history(text, "PATH"), testing::Names("PATH", "history"));
  }
}

TEST_CASE("A record without data identity gets that of the run that saved it") {
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

TEST_CASE("The mean loss covers and names the last 50 steps") {
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

TEST_CASE("The mean omits losses that are not finite, and is empty without finite ones") {
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

TEST_CASE("The step time is the median") {
  RecentSteps recent;
  CHECK_FALSE(recent.seconds().has_value());
  for (const double seconds : {3.0, 1.0, 9.0}) recent.note({.step = 1, .seconds = seconds});
  CHECK(recent.seconds() == 3.0);
}

}  // namespace
}  // namespace dtrain::train::spike_detector_test
