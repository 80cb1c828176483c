#include "dtrain/optim/schedule.h"

#include <catch2/catch.hpp>

namespace dtrain::optim::schedule_test {
namespace {

Schedule schedule(ScheduleShape shape) {
  return {.shape = shape, .peak = 1.0, .minimum = 0.2, .warmup_steps = 4, .total_steps = 12};
}

TEST_CASE("Warm-up rises linearly to the peak under every schedule") {
  for (const auto shape : {ScheduleShape::constant, ScheduleShape::linear, ScheduleShape::cosine}) {
    const Schedule s = schedule(shape);
    CHECK(s.rate(0) == 0.25);
    CHECK(s.rate(1) == 0.5);
    CHECK(s.rate(3) == 1.0);
    CHECK(s.rate(4) == 1.0);
  }
}

TEST_CASE("A constant schedule stays at the peak") {
  CHECK(schedule(ScheduleShape::constant).rate(11) == 1.0);
  CHECK(schedule(ScheduleShape::constant).rate(1000) == 1.0);
}

TEST_CASE("A linear schedule falls to the minimum and stays there") {
  const Schedule s = schedule(ScheduleShape::linear);
  CHECK(s.rate(6) == Approx(0.8));   // 2 of 8 steps: 1 - 0.8 / 4
  CHECK(s.rate(8) == Approx(0.6));   // half way
  CHECK(s.rate(11) == Approx(0.3));  // the last update: 7 of 8
  CHECK(s.rate(12) == Approx(0.2));
  CHECK(s.rate(100) == Approx(0.2));
}

TEST_CASE("A cosine schedule falls along half a cosine") {
  const Schedule s = schedule(ScheduleShape::cosine);
  CHECK(s.rate(6) == Approx(0.2 + 0.8 * 0.8535533905932737));  // (1 + cos 45 degrees) / 2
  CHECK(s.rate(8) == Approx(0.6));
  CHECK(s.rate(10) == Approx(0.2 + 0.8 * 0.1464466094067263));
  CHECK(s.rate(12) == Approx(0.2));
}

TEST_CASE("A warmup-stable-decay schedule stays at the peak until its last steps") {
  Schedule s = schedule(ScheduleShape::warmup_stable_decay);
  s.decay_steps = 4;
  CHECK(s.rate(2) == 0.75);  // still warming up
  for (std::int64_t step = 4; step <= 8; ++step) CHECK(s.rate(step) == 1.0);
  CHECK(s.rate(9) == Approx(0.8));   // 1 of 4 steps: 1 - 0.8 / 4
  CHECK(s.rate(11) == Approx(0.4));  // the last update
  CHECK(s.rate(12) == Approx(0.2));
  CHECK(s.rate(100) == Approx(0.2));
}

TEST_CASE("Decay may directly follow warm-up, and may last one step") {
  Schedule s = schedule(ScheduleShape::warmup_stable_decay);
  s.decay_steps = 8;
  const Schedule linear = schedule(ScheduleShape::linear);
  for (std::int64_t step = 0; step < 14; ++step) CHECK(s.rate(step) == linear.rate(step));
  s.decay_steps = 1;
  CHECK(s.rate(11) == 1.0);
  CHECK(s.rate(12) == Approx(0.2));
}

TEST_CASE("A run may consist of warm-up alone, or have none") {
  const Schedule all{
      .shape = ScheduleShape::linear, .peak = 1, .minimum = 0, .warmup_steps = 3, .total_steps = 3};
  CHECK(all.rate(2) == 1);
  const Schedule none{.shape = ScheduleShape::linear, .peak = 1, .minimum = 0, .total_steps = 4};
  CHECK(none.rate(0) == 1);
  CHECK(none.rate(3) == Approx(0.25));
}

}  // namespace
}  // namespace dtrain::optim::schedule_test
