#include <catch2/catch.hpp>
#include <limits>

#include "dtrain/train/run_meter.h"

namespace dtrain::train::recent_steps_test {
namespace {

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
}  // namespace dtrain::train::recent_steps_test
