// Measures the machine's peak FLOP/s with matrix products, for model FLOPs utilization (MFU).
#pragma once

#include <c10/core/TensorOptions.h>

#include <cstdint>
#include <optional>

#include "dtrain/comm/world.h"

namespace dtrain::metrics {

/// Returns the highest FLOP/s of a few square matrix products in the options' dtype on their
/// device. The matrix size grows until a product takes long enough to be timed. On a CPU, products
/// use this process's current number of threads, and our own GEMM (kernels/gemm.h) is measured too.
/// Empty if the device lacks memory. Takes about 50 ms, on a CPU 70 ms; frees its memory, and
/// resets the device's peak-memory counter.
[[nodiscard]] std::optional<double> measure_peak_flops(const at::TensorOptions& options);

/// Returns the FLOP/s of all ranks, assuming that each is as fast as this one. All ranks measure at
/// the same time and wait for each other.
///
/// Collective: every rank of `world`.
[[nodiscard]] std::optional<double> peak_flops_of(comm::World& world, at::ScalarType dtype);

/// Peak FLOP/s for MFU: the highest rate of matrix products measured so far. Other load on the
/// machine can only lower a measurement, so measurements are repeated during the run. After a step
/// that exceeds the peak, MFU is unknown until a higher peak is measured.
///
/// Threads: one.
class PeakFlops {
 public:
  struct Options {
    /// peak_flops_of() at the start; if empty, MFU is unknown.
    std::optional<double> measured = {};
    at::TensorOptions tensors = {};  ///< dtype and device of the products
    std::int64_t num_ranks = 1;
  };

  explicit PeakFlops(Options options);

  /// True after 10, 20, 40, 80 ... steps, on a CPU.
  [[nodiscard]] bool is_due(std::int64_t steps_done) const;
  /// Measures again, in about 5 ms. As in peak_flops_of(), all ranks must measure at the same time:
  /// after the same step.
  void measure_again();
  /// Returns `flops_per_second`, the rate of all ranks together, over the peak, 0..1; empty if
  /// unknown.
  [[nodiscard]] std::optional<double> utilization(double flops_per_second);

 private:
  Options options_;
  double fastest_step_ = 0;  // FLOP/s
};

}  // namespace dtrain::metrics
