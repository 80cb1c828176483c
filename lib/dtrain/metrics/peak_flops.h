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

/// Peak FLOP/s for MFU: the highest rate of matrix products measured so far. Other load on the
/// machine only lowers a measurement, so it is repeated during the run. After a step that beats the
/// peak, MFU is unknown until a higher peak is measured.
///
/// Threads: one.
class PeakFlops {
 public:
  struct Options {
    std::optional<double> measured = {};  ///< peak_flops_of() at the start; empty: MFU is unknown
    at::TensorOptions tensors = {};       ///< dtype and device of the products
    std::int64_t num_ranks = 1;
  };

  explicit PeakFlops(Options options);

  /// True after 10, 20, 40, 80 ... steps, on a CPU.
  [[nodiscard]] bool is_due(std::int64_t steps_done) const;
  /// Takes 5 ms. All ranks measure after the same step, as in peak_flops_of().
  void measure_again();
  /// Returns `flops_per_second` of all ranks over the peak, 0..1; empty if that is unknown.
  [[nodiscard]] std::optional<double> utilization(double flops_per_second);

 private:
  Options options_;
  double fastest_step_ = 0;  // FLOP/s
};

}  // namespace dtrain::metrics
