// The run that a start resumes, as the command names it.
#pragma once

#include <string>

#include "dtrain/config/config.h"

namespace dtrain::config {

/// The config.json of the run that this start resumes: that of the run folder with --resume auto,
/// else of the run or the checkpoint that --resume names. Empty where there is none.
[[nodiscard]] std::string resumed_config_file(const Config& config);

}  // namespace dtrain::config
