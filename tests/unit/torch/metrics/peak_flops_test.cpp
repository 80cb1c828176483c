#include "dtrain/metrics/peak_flops.h"

#include <catch2/catch.hpp>
#include <cmath>

namespace dtrain::metrics {
namespace {

TEST_CASE("The peak is measured in every dtype that a model computes in") {
  const auto dtype = GENERATE(c10::kFloat, c10::kDouble, c10::kBFloat16, c10::kHalf);
  const double peak = measure_peak_flops(at::TensorOptions().dtype(dtype)).value();
  CHECK(std::isfinite(peak));
  CHECK(peak > 0);
}

}  // namespace
}  // namespace dtrain::metrics
