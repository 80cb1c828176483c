#include "dtrain/metrics/peak_flops.h"

#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <limits>

#include "dtrain/base/clock.h"
#include "dtrain/device/synchronize.h"
#include "dtrain/kernels/gemm.h"
#include "dtrain/metrics/tensor_memory.h"

namespace dtrain::metrics {
namespace {

constexpr std::int64_t kSmallest = 512;  // rows and columns of a factor
constexpr std::int64_t kLargest = 4096;
constexpr double kTooShort = 2e-4;  // seconds; the launch of a kernel would distort the rate
constexpr double kBudgetSeconds = 0.05;
constexpr double kKernelBudgetSeconds = 0.02;
constexpr double kRepeatBudgetSeconds = 0.005;
constexpr std::int64_t kFirstRepeat = 10;  // steps

// Seconds of the fastest product. Stops early if the size turns out to be too short to time.
double best_seconds(const at::TensorOptions& options, std::int64_t size) {
  const at::Tensor a = at::ones({size, size}, options);  // (size, size)
  // The transposition of the forward pass; some processors are much slower at others in 16 bits.
  const at::Tensor b = a.t();         // (size, size)
  at::Tensor product = at::mm(a, b);  // (size, size)
  device::synchronize(options.device());
  double best = std::numeric_limits<double>::infinity();
  const auto start = base::Clock::now();
  do {
    const auto begin = base::Clock::now();
    at::mm_out(product, a, b);
    device::synchronize(options.device());
    best = std::min(best, base::seconds_since(begin));
  } while (base::seconds_since(start) < kBudgetSeconds && (best > kTooShort || size == kLargest));
  return best;
}

}  // namespace

std::optional<double> measure_peak_flops(const at::TensorOptions& options) {
  std::optional<double> best;
  try {
    for (std::int64_t size = kSmallest; size <= kLargest; size *= 2) {
      const double seconds = best_seconds(options, size);
      const double flops = 2.0 * static_cast<double>(size * size * size);
      best = std::max(best.value_or(0), flops / seconds);
      if (seconds > kTooShort) break;
    }
  } catch (const c10::OutOfMemoryError&) {
    // No room for larger products: the smaller ones count.
  }
  if (options.device().is_cpu()) {
    const double of_kernels =
        kernels::gemm_rate(c10::typeMetaToScalarType(options.dtype()), kKernelBudgetSeconds);
    if (of_kernels > best.value_or(0)) best = of_kernels;
  } else {
    c10::getDeviceAllocator(options.device().type())->emptyCache();
  }
  restart_peak(options.device());
  return best;
}

std::optional<double> peak_flops_of(comm::World& world, at::ScalarType dtype) {
  world.control().barrier();
  const std::optional<double> own = measure_peak_flops(world.options(dtype));
  world.control().barrier();
  return own ? std::optional(*own * static_cast<double>(world.size())) : std::nullopt;
}

PeakFlops::PeakFlops(Options options) : options_(options) {}

bool PeakFlops::is_due(std::int64_t steps_done) const {
  if (!options_.measured || !options_.tensors.device().is_cpu()) return false;
  std::int64_t due = kFirstRepeat;
  while (due < steps_done) due *= 2;
  return due == steps_done;
}

void PeakFlops::measure_again() {
  const auto type = c10::typeMetaToScalarType(options_.tensors.dtype());
  const double rate = kernels::gemm_rate(type, kRepeatBudgetSeconds);
  const double all = rate * static_cast<double>(options_.num_ranks);
  options_.measured = std::max(options_.measured.value_or(0), all);
}

std::optional<double> PeakFlops::utilization(double flops_per_second) {
  fastest_step_ = std::max(fastest_step_, flops_per_second);
  if (!options_.measured || fastest_step_ > *options_.measured) return std::nullopt;
  return flops_per_second / *options_.measured;
}

}  // namespace dtrain::metrics
