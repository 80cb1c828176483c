// Measures the machine's peak speed of matrix products, for model FLOP utilisation (MFU).
#pragma once

#include <c10/core/TensorOptions.h>

#include <cstdint>
#include <optional>

#include "dtrain/comm/world.h"

namespace dtrain::metrics {

/// FLOP/s of the best of a few square matrix products in the options' dtype on their device, on a
/// CPU with the threads this process uses now; larger ones where small ones end too soon to tell.
/// Nothing where the device has no room for them. Takes about 50 ms, gives its memory back, and
/// restarts the peak of memory.
[[nodiscard]] std::optional<double> measure_peak_flops(const at::TensorOptions& options);

/// FLOP/s of all ranks, if each is as fast as this one. They measure at the same time, and none
/// goes on while another measures.
///
/// Collective: every rank of `world`.
[[nodiscard]] std::optional<double> peak_flops_of(comm::World& world, at::ScalarType dtype);

/// The peak that a run's MFU refers to: the highest rate of matrix products that was measured so
/// far. What else runs on a machine only lowers a measurement, so it is repeated as the run goes on.
/// A step that beats the peak shows that it is none: until a higher one is measured, no MFU is known.
///
/// Threads: one.
class PeakFlops {
 public:
  struct Options {
    std::optional<double> measured = {};  ///< peak_flops_of() at the start; none: no MFU is known
    at::TensorOptions tensors = {};       ///< dtype and device of the products
    std::int64_t num_ranks = 1;
  };

  explicit PeakFlops(Options options);

  /// True after 10, 20, 40, 80 ... steps, on a CPU.
  [[nodiscard]] bool is_due(std::int64_t steps_done) const;
  /// Takes 5 ms. All ranks measure after the same step, as peak_flops_of() does.
  void measure_again();
  /// The share of the peak that `flops_per_second` of all ranks are, 0..1; none where it is not
  /// known.
  [[nodiscard]] std::optional<double> utilization(double flops_per_second);

 private:
  Options options_;
  double fastest_step_ = 0;  // FLOP/s
};

}  // namespace dtrain::metrics
