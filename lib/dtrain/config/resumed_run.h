// Locates the configuration of the run that a start resumes.
#pragma once

#include <string>

#include "dtrain/config/config.h"

namespace dtrain::config {

/// Returns the path of config.json of the run that this start resumes: the run folder with --resume
/// auto, otherwise the run, or the checkpoint's run, that --resume names. Empty if there is none.
[[nodiscard]] std::string resumed_config_file(const Config& config);

}  // namespace dtrain::config
