// Predicts the memory of a layout and the time of its steps from measured or given rates.
#pragma once

#include <cstdint>

#include "dtrain/config/config.h"
#include "dtrain/planner/layouts.h"
#include "dtrain/planner/machine_rates.h"

namespace dtrain::planner {

/// Of the rank that takes most.
struct Prediction {
  std::int64_t memory = 0;   ///< bytes of tensors
  double bytes_sent = 0;     ///< in a step
  double bubble = 0;         ///< time without work over time with work, of a pipeline
  double compute = 0;        ///< seconds of a step; what follows comes on top
  double waiting = 0;        ///< in the bubble
  double update = 0;         ///< norm, clipping and optimizer
  double communication = 0;  ///< as far as nothing is computed meanwhile

  [[nodiscard]] double seconds() const { return compute + waiting + update + communication; }
};

/// Rates of computation and communication: given, or measured on this machine.
struct Rates {
  double flops = 0;                  ///< of a rank; 0: measured
  double link_bytes_per_second = 0;  ///< of a rank to other nodes; 0: as within one
  MachineRates* measured = nullptr;  ///< null: communication within a node is free

  /// The same where nothing may be measured: times mean nothing then.
  [[nodiscard]] Rates without_runs() const {
    return {measured == nullptr ? flops : 1, link_bytes_per_second, nullptr};
  }
};

/// config: resolved. A step of several microbatches, through all stages.
///
/// Throws: as parallel::rank_plan.
[[nodiscard]] Prediction predict(const config::Config& config, const Site& site,
                                 const Rates& rates);

}  // namespace dtrain::planner
