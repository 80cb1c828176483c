// The losses of a global batch and the votes of all ranks, in one reduction.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "dtrain/parallel/engine/engine_setup.h"

namespace dtrain::parallel {

/// Yes or no of one rank or, once reduced, of all ranks: yes where any rank's is.
using Votes = std::vector<bool>;

/// A loss over the global batch; equal on every rank.
struct StepLoss {
  double sum_nll = 0;  ///< nats
  std::int64_t num_tokens = 0;
  Votes votes = {};  ///< of all ranks

  [[nodiscard]] double mean() const { return sum_nll / static_cast<double>(num_tokens); }
};

/// Sums losses in float64, each in its slot, and counts votes.
///
/// Collective: reduce, by every rank of the world, with as many losses and votes.
/// Throws:     wait and read what Work::wait throws.
/// Threads:    one.
class LossReport {
 public:
  /// `setup` must outlive this.
  LossReport(const EngineSetup& setup, std::int64_t num_losses, std::size_t num_votes);

  /// Room for the losses that this rank reports, (num_losses) float64, zero. Adding the zeros of
  /// ranks that write nothing there is exact.
  [[nodiscard]] at::Tensor losses() const { return slots_.narrow(0, 0, num_losses_); }

  /// Async: the losses are not touched until wait() or read() returns.
  void reduce(const Votes& votes);

  /// From now on losses() holds those of all ranks.
  void wait() { reduced_.wait(); }

  /// The findings, where the host can read them.
  struct Findings {
    double sum = 0;    ///< of the losses of all ranks, added in order to what was before
    Votes votes = {};  ///< of all ranks
    std::vector<double> values = {};
  };
  /// Blocks until all has come. along: (n) float64, is read at the same time; undefined: nothing.
  [[nodiscard]] Findings read(double before = 0, const at::Tensor& along = {});

 private:
  const EngineSetup& setup_;
  std::int64_t num_losses_;
  at::Tensor slots_;  // (losses + votes) float64
  comm::Work reduced_;
};

}  // namespace dtrain::parallel
