// The name of a rank's build.
#pragma once

#include <string>

#include "dtrain/config/saved_run.h"

namespace dtrain::commands {

/// "dtrain 0.1.0 (commit 1a2b3c4d5e6f), LibTorch 2.11.0": of the program that made this record.
[[nodiscard]] std::string build_text(const config::StartRecord& record);

}  // namespace dtrain::commands
