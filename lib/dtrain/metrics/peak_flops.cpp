#include "dtrain/metrics/peak_flops.h"

#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>

#include <algorithm>

#include "dtrain/base/clock.h"
#include "dtrain/device/synchronize.h"

namespace dtrain::metrics {

double measure_peak_flops(const at::TensorOptions& options) {
  const std::int64_t size = options.device().is_cuda() ? 4096 : 512;
  const double flops = 2.0 * static_cast<double>(size * size * size);
  constexpr double kBudgetSeconds = 0.05;
  const at::Tensor a = at::ones({size, size}, options);
  // As the forward pass multiplies; in 16 bits some processors do others much more slowly.
  const at::Tensor b = a.t();
  at::Tensor product = at::mm(a, b);
  double best = 0;
  for (const auto start = base::Clock::now(); base::seconds_since(start) < kBudgetSeconds;) {
    const auto begin = base::Clock::now();
    at::mm_out(product, a, b);
    device::synchronize(options.device());
    best = std::max(best, flops / base::seconds_since(begin));
  }
  return best;
}

}  // namespace dtrain::metrics
