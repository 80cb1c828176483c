#include <catch2/catch.hpp>
#include <cmath>
#include <optional>
#include <thread>
#include <vector>

#include "dtrain/metrics/peak_flops.h"
#include "dtrain/metrics/profile.h"
#include "support/messages.h"

namespace dtrain::metrics::time_table_test {
namespace {

using base::Span;
using base::TracePart;
using Catch::Contains;
using namespace std::chrono_literals;

constexpr double kOf = 1e-3;  // seconds in a millisecond

TEST_CASE("Time within a step counts once, for the innermost span") {
  base::Trace trace(10);
  base::Trace::of_thread() = &trace;
  {
    const Span step("step", TracePart::step);
    {
      const Span forward("forward", TracePart::forward);
      std::this_thread::sleep_for(4ms);
      const Span wait("wait", TracePart::wait);
      std::this_thread::sleep_for(8ms);
    }
    std::this_thread::sleep_for(2ms);
  }
  {
    const Span evaluation("evaluation", TracePart::evaluation);
    const Span forward("forward", TracePart::forward);
    std::this_thread::sleep_for(4ms);
  }
  base::Trace::of_thread() = nullptr;
  const PartTimes times = part_times(trace.spans());
  const auto& spans = trace.spans();
  const auto length = [&](std::size_t i) {
    return base::Seconds(spans[i].end - spans[i].begin).count();
  };
  CHECK(times.steps == 1);
  CHECK(times.step_seconds == Approx(length(0)));
  CHECK(times.of(TracePart::wait) == Approx(length(2)));
  CHECK(times.of(TracePart::forward) == Approx(length(1) - length(2)));
  CHECK(times.rest() == Approx(length(0) - length(1)));
  CHECK(times.of(TracePart::evaluation) == Approx(length(3)));
  CHECK(times.of(TracePart::wait) >= 8 * kOf);
  CHECK(times.rest() >= 2 * kOf);
  CHECK(to_text(times_from(to_text(times))) == to_text(times));
}

TEST_CASE("The table shows means per step and names the extreme ranks") {
  PartTimes first{.steps = 2, .step_seconds = 20 * kOf};
  first.of(TracePart::forward) = 12 * kOf;
  first.of(TracePart::wait) = 4 * kOf;
  PartTimes second{.steps = 2, .step_seconds = 20 * kOf};
  second.of(TracePart::forward) = 16 * kOf;
  const std::string table = time_table({first, second});
  CHECK_THAT(table, testing::Names("2 steps", "2 ranks"));
  CHECK_THAT(table, Contains("forward                              7.000     70.0 %"
                             "       6.000 (rank 0)       8.000 (rank 1)"));
  CHECK_THAT(table, Contains("communication            1.000     10.0 %"
                             "       0.000 (rank 1)       2.000 (rank 0)"));
  CHECK_THAT(table, Contains("rest                                 2.000     20.0 %"));
  CHECK_THAT(table, Contains("whole step                          10.000    100.0 %"));
  CHECK_THAT(table, !Contains("data") && !Contains("evaluation"));
  CHECK_THAT(time_table({first}), !Contains("(rank"));
  // A narrow terminal shows the means, with lines unbroken.
  const std::string narrow = time_table({first, second}, {}, 80);
  CHECK_THAT(narrow, Contains("70.0 %\n") && !Contains("(rank") && !Contains("least"));
  CHECK(time_table({first, second}, {}, 97) == table);
}

TEST_CASE("The peak is measured in every dtype that a model computes in") {
  const auto dtype = GENERATE(c10::kFloat, c10::kDouble, c10::kBFloat16, c10::kHalf);
  const double peak = measure_peak_flops(at::TensorOptions().dtype(dtype)).value();
  CHECK(std::isfinite(peak));
  CHECK(peak > 0);
}

PeakFlops peak_of(std::optional<double> measured) {
  return PeakFlops(
      {.measured = measured, .tensors = at::TensorOptions().dtype(c10::kFloat), .num_ranks = 2});
}

TEST_CASE("After a step exceeds the measured peak, utilization is unknown") {
  PeakFlops peak = peak_of(100.0);
  CHECK(peak.utilization(50) == 0.5);
  CHECK_FALSE(peak.utilization(133).has_value());
  CHECK_FALSE(peak.utilization(50).has_value());
}

TEST_CASE("A peak measured on a busy machine is measured again, and never lowered") {
  PeakFlops slow = peak_of(1.0);
  CHECK_FALSE(slow.utilization(1e3).has_value());
  slow.measure_again();
  CHECK(slow.utilization(1e3).value() < 1e-3);  // a million FLOP/s are within any machine's reach
  PeakFlops fast = peak_of(1e30);
  fast.measure_again();
  CHECK(fast.utilization(1e30) == 1.0);
}

TEST_CASE("Measurements become rarer over a run") {
  std::vector<std::int64_t> due;
  for (std::int64_t step = 0; step <= 100; ++step) {
    if (peak_of(1.0).is_due(step)) due.push_back(step);
  }
  CHECK(due == std::vector<std::int64_t>{10, 20, 40, 80});
}

TEST_CASE("Without a peak there is no utilization, and nothing is measured again") {
  PeakFlops none = peak_of(std::nullopt);
  CHECK_FALSE(none.is_due(10));
  CHECK_FALSE(none.utilization(1).has_value());
}

}  // namespace
}  // namespace dtrain::metrics::time_table_test
