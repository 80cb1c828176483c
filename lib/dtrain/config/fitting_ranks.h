// On how many ranks a run can go on.
#pragma once

#include <string>

#include "dtrain/base/error.h"
#include "dtrain/config/continued_run.h"

namespace dtrain::config {

/// The message where a run that goes on with its own settings cannot do so on this launch's ranks:
/// "--run-dir RUN --resume auto cannot resume with 3 ranks: launch 1, 2, 4 or 8; of the run's
/// settings, ...". Numbers above 64 are not tried. The same as `error` where no other number of
/// ranks would do.
///
/// given: what the command alone says, of which continue_run makes a run on some ranks.
/// error: why not on these.
[[nodiscard]] std::string describe_unfit_ranks(const CommandLine& command_line, const Loaded& given,
                                               const RunSettings& run, const Launch& launch,
                                               const base::Error& error);

}  // namespace dtrain::config
