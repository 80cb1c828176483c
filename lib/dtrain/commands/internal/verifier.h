// Compares the engine's results with golden numbers, under any layout, dtype and number of threads.
#pragma once

#include <string>
#include <vector>

#include "dtrain/config/config.h"

namespace dtrain::comm {
class World;
}

namespace dtrain::commands {

/// One comparison. error: the largest difference, divided by the largest expected value; not
/// divided for losses of a trajectory, or if all expected values are zero.
struct Check {
  std::string name;
  double error = 0;
  double tolerance = 0;

  [[nodiscard]] bool passed() const { return error <= tolerance; }  // false for NaN
};

/// The results of all comparisons.
struct Verification {
  std::vector<Check> checks;

  [[nodiscard]] bool passed() const;
  /// One JSON object in one line: each check with its error and tolerance, and "passed".
  [[nodiscard]] std::string to_json(const config::Config& config) const;
};

/// Compares the engine's results with the fixture config.verify.golden and, if given, the
/// trajectory. The model's sizes come from the fixture; layout, dtype, threads and batch.grad_accum
/// come from `config`.
///
/// Collective: every rank of the world; all return the same.
/// Throws:     Error{checkpoint} and Error{data} for unusable files; Error{usage} if the fixture's
///             rows do not divide evenly among ranks and microbatches.
[[nodiscard]] Verification verify(const config::Config& config, std::shared_ptr<comm::World> world);

}  // namespace dtrain::commands
