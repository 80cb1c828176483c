// How far the results of training move through rounding, measured by float64 runs of the same work.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <vector>

#include "dtrain/config/config.h"
#include "support/engine_run.h"

namespace dtrain::testing {

/// Bounds of the errors of a run's numbers.
struct TraceBound {
  std::vector<double> losses;             ///< absolute, by step
  std::vector<double> norms;              ///< relative, by step
  std::map<std::string, double> state;    ///< as largest_error
  std::map<std::string, double> updates;  ///< of weights, as error_of_update
};

/// Bounds how far a run of `config` in `dtype` is from one without rounding: by float64 runs whose
/// weights are disturbed before every step by as much as all roundings of a step sum up to.
///
/// config: dtypes by role are not resolved yet.
[[nodiscard]] TraceBound rounding_bound_of(const config::Config& config, at::ScalarType dtype);

/// How far two runs' weights are apart, over how far training has moved them from `initial`.
[[nodiscard]] double error_of_update(const at::Tensor& found, const at::Tensor& expected,
                                     const at::Tensor& initial);

/// Checks that two runs agree, each of which is within `bound`.
void check_near(const Trace& found, const Trace& expected, const TraceBound& bound);

}  // namespace dtrain::testing
