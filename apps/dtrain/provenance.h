// Where this program comes from, and how this process was started.
#pragma once

#include <cstdint>
#include <string>

#include "dtrain/base/rank_env.h"

namespace dtrain::app {

/// "0.1.0 (commit 1a2b3c4d5e6f)"; "-modified" follows the commit where the source differed from it,
/// and "unknown" stands for it where there is no repository.
[[nodiscard]] std::string version_text();

/// A JSON object: version, commit, command_line (a list), directory, host, cpu, started (UTC),
/// ranks, and under a launcher the launch and its restarts (docs/formats/metrics.md).
[[nodiscard]] std::string provenance(std::int64_t ranks, const base::RankEnv& env);

/// What dtrain doctor wants to know of this program: version, commit, cpu, plugins and gpus.
[[nodiscard]] std::string doctor_record();

}  // namespace dtrain::app
