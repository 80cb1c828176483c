// Version and commit of this program, and the record of how this process was started.
#pragma once

#include <cstdint>
#include <string>

#include "dtrain/base/rank_env.h"

namespace dtrain::app {

/// Returns version and commit: "0.1.0 (commit 1a2b3c4d5e6f)". The commit has the suffix "-modified"
/// if the source differed from it, and is "unknown" if the build had no git repository.
[[nodiscard]] std::string version_text();

/// A JSON object: version, commit, command_line (a list), directory, host, cpu, started (UTC),
/// ranks; under a launcher also launch and restarts (docs/formats/metrics.md).
[[nodiscard]] std::string provenance(std::int64_t ranks, const base::RankEnv& env);

/// A JSON object for dtrain doctor: version, commit, cpu, plugins and gpus.
[[nodiscard]] std::string doctor_record();

}  // namespace dtrain::app
