// Converts --epochs to a number of steps.
#pragma once

#include <cstdint>

#include "dtrain/config/config.h"

namespace dtrain::app {

/// The steps of train.epochs passes over the training data, rounded up. config: resolved, except
/// for its steps.
///
/// Throws: Error{data} as data::open_split; Error{usage} if they are more than a run can have.
[[nodiscard]] std::int64_t steps_of_epochs(const config::Config& config);

}  // namespace dtrain::app
