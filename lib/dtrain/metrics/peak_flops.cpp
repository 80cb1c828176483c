#include "dtrain/metrics/peak_flops.h"

#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>

#include <algorithm>

#include "dtrain/base/clock.h"

namespace dtrain::metrics {

double measure_peak_flops(c10::ScalarType dtype) {
  constexpr std::int64_t kSize = 512;
  constexpr double kFlops = 2.0 * kSize * kSize * kSize;
  constexpr double kBudgetSeconds = 0.05;
  const at::Tensor a = at::ones({kSize, kSize}, at::TensorOptions().dtype(dtype));
  // As the forward pass multiplies; in 16 bits some processors do others much more slowly.
  const at::Tensor b = a.t();
  at::Tensor product = at::mm(a, b);
  double best = 0;
  for (const auto start = base::Clock::now(); base::seconds_since(start) < kBudgetSeconds;) {
    const auto begin = base::Clock::now();
    at::mm_out(product, a, b);
    best = std::max(best, kFlops / base::seconds_since(begin));
  }
  return best;
}

}  // namespace dtrain::metrics
