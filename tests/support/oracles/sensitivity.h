// Estimates, by perturbed float64 runs, how much rounding changes training results.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <map>
#include <string>
#include <vector>

#include "dtrain/config/config.h"
#include "support/engine_run.h"

namespace dtrain::testing {

/// Error bounds of a run's results.
struct TraceBound {
  std::vector<double> losses;             ///< absolute, by step
  std::vector<double> norms;              ///< relative, by step
  std::map<std::string, double> state;    ///< as largest_error
  std::map<std::string, double> updates;  ///< error_of_update of the weights
};

/// Returns the dtype that machine.dtype names, float32 or one of 16 bits.
[[nodiscard]] at::ScalarType scalar_type_of(const std::string& dtype);

/// Bounds the difference between a run of `config` in `dtype` and an exact run. Uses float64 runs
/// in which the accumulated rounding error of a step perturbs the weights before every step.
///
/// config: with unresolved per-role dtypes.
[[nodiscard]] TraceBound rounding_bound_of(const config::Config& config, at::ScalarType dtype);

/// Returns the distance of two runs' weights, relative to their distance from `initial`.
[[nodiscard]] double error_of_update(const at::Tensor& found, const at::Tensor& expected,
                                     const at::Tensor& initial);

/// Checks that two runs agree within their combined error, which is at most `bound` for each run.
void check_near(const Trace& found, const Trace& expected, const TraceBound& bound);

/// As above for runs in 16 bits, which skip steps that overflow: the norms of these are not compared,
/// and of the state only the number of updates and the updates of the weights since `initial`.
void check_updates_near(const Trace& found, const Trace& expected, const Trace& initial,
                        const TraceBound& bound);

}  // namespace dtrain::testing
