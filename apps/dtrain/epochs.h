// Converts --epochs to a number of steps, and steps to epochs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "dtrain/config/config.h"
#include "dtrain/data/split.h"

namespace dtrain::app {

/// The steps of train.epochs passes over the training data, rounded up. config: resolved, except
/// for its steps.
///
/// Throws: Error{data} as data::open_split; Error{usage} if they are more than a run can have.
[[nodiscard]] std::int64_t steps_of_epochs(const config::Config& config);

/// Warns about batches of more samples than there are, and about files that the run reads so often
/// that it memorises them, one line per file.
///
/// config: resolved.
[[nodiscard]] std::vector<std::string> epoch_warnings(const config::Config& config,
                                                      const data::Split& split);

}  // namespace dtrain::app
