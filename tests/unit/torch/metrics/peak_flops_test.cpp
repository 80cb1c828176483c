#include "dtrain/metrics/peak_flops.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <optional>
#include <vector>

namespace dtrain::metrics::peak_flops_test {
namespace {

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

TEST_CASE("A step that beats the measured peak shows that no utilization is known") {
  PeakFlops peak = peak_of(100.0);
  CHECK(peak.utilization(50) == 0.5);
  CHECK_FALSE(peak.utilization(133).has_value());
  CHECK_FALSE(peak.utilization(50).has_value());
}

TEST_CASE("A peak that was measured on a busy machine is measured again, and never lowered") {
  PeakFlops slow = peak_of(1.0);
  CHECK_FALSE(slow.utilization(1e3).has_value());
  slow.measure_again();
  CHECK(slow.utilization(1e3).value() < 1e-3);  // a million FLOP/s are within any machine's reach
  PeakFlops fast = peak_of(1e30);
  fast.measure_again();
  CHECK(fast.utilization(1e30) == 1.0);
}

TEST_CASE("Measurements come ever more rarely as a run goes on") {
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
}  // namespace dtrain::metrics::peak_flops_test
