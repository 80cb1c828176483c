// Describes a numerical failure: values that are not finite, or too many skipped updates.
#pragma once

#include <string>

#include "dtrain/parallel/engine/step_engine.h"

namespace dtrain::train {

/// The parts of an error message.
struct NumericalFailure {
  std::string found;   ///< "step 7: loss nan, gradient norm nan: stopped before the update"
  std::string advice;  ///< "lower --lr"
};

/// Returns advice on a non-finite loss or gradient, for this engine's precision.
[[nodiscard]] std::string advice_on_nonfinite(const parallel::StepEngine& engine);

}  // namespace dtrain::train
