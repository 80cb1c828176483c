// The steps of a run whose length is given in passes over its data.
#pragma once

#include <cstdint>

#include "dtrain/config/config.h"

namespace dtrain::app {

/// The steps that train.epochs passes over the training data take, the last one begun counted. The
/// configuration is resolved up to its steps.
///
/// Throws: Error{data} as data::open_split; Error{usage} if they are more than a run can have.
[[nodiscard]] std::int64_t steps_of_epochs(const config::Config& config);

}  // namespace dtrain::app
