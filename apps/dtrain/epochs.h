// Converts --epochs to a number of steps, and steps to epochs.
#pragma once

#include <cstdint>

#include "dtrain/config/config.h"
#include "dtrain/data/split.h"

namespace dtrain::app {

/// The steps of train.epochs passes over the training data, rounded up. config: resolved, except
/// for its steps.
///
/// Throws: Error{data} as data::open_split; Error{usage} if they are more than a run can have.
[[nodiscard]] std::int64_t steps_of_epochs(const config::Config& config);

/// Warns of a run that reads a file so often that it learns it by heart. config: resolved.
void warn_of_many_epochs(const config::Config& config, const data::Split& split);

}  // namespace dtrain::app
