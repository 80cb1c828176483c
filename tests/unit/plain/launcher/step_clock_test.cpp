#include <catch2/catch.hpp>

#include "launcher/clocks.h"

namespace step_clock_test {
namespace {

using launcher::StepClock;
using std::chrono::milliseconds;

StepClock::Time at(int ms) { return StepClock::Time(milliseconds(ms)); }

TEST_CASE("The time of steps counts from the second report of an attempt on") {
  StepClock clock;
  clock.begin_attempt();
  clock.report(1, at(5000));
  CHECK(clock.useful().count() == 0);
  clock.report(2, at(5100));
  clock.report(2, at(5150));  // again: nothing new
  clock.report(4, at(5300));
  CHECK(clock.useful().count() == Approx(300e-3));
}

TEST_CASE("A step that is repeated after a failure counts once") {
  StepClock clock;
  clock.begin_attempt();
  for (int step = 1; step <= 5; ++step) clock.report(step, at(100 * step));
  clock.fail(at(550));
  CHECK(clock.useful().count() == Approx(400e-3));
  clock.begin_attempt();  // resumes after step 3
  clock.report(4, at(2000));
  clock.report(5, at(2100));
  CHECK(clock.useful().count() == Approx(400e-3));
  clock.report(6, at(2200));
  CHECK(clock.useful().count() == Approx(500e-3));
}

TEST_CASE("A job has recovered with the first step that no attempt had done") {
  StepClock clock;
  clock.begin_attempt();
  clock.report(5, at(100));
  clock.fail(at(500));
  clock.begin_attempt();
  CHECK_FALSE(clock.report(5, at(1000)));
  CHECK_FALSE(clock.recovery());
  CHECK(clock.report(6, at(1250)));
  CHECK(clock.recovery()->count() == Approx(0.75));
  CHECK_FALSE(clock.report(7, at(1300)));
  CHECK(clock.recovery()->count() == Approx(0.75));
  clock.begin_attempt();
  CHECK_FALSE(clock.recovery());
}

TEST_CASE("A second failure before the recovery does not shorten it") {
  StepClock clock;
  clock.begin_attempt();
  clock.report(5, at(100));
  clock.fail(at(500));
  clock.begin_attempt();
  clock.report(4, at(1000));
  clock.fail(at(1100));
  clock.begin_attempt();
  CHECK(clock.report(6, at(2500)));
  CHECK(clock.recovery()->count() == Approx(2));
}

}  // namespace
}  // namespace step_clock_test
