// What a run says of itself before its first step.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "dtrain/data/split.h"
#include "dtrain/job/job.h"

namespace dtrain::job {

/// Runs with equal text here have equal bits in every loss, norm and weight over the data axis, as
/// far as counts of ranks and microbatches are powers of two.
[[nodiscard]] std::string bitwise_class(const config::Config& config, const CpuTypes& cpus);

/// The place of each rank, and for each axis of several ranks which ranks are a group along it: a
/// line each, shortened where there are many. Empty for one rank.
[[nodiscard]] std::string mesh_lines(const mesh::DeviceMesh& mesh);

/// The table for people.
[[nodiscard]] std::string start_table(Job& job, const data::Split& split);

/// The fields of the "start" line of metrics.jsonl.
[[nodiscard]] nlohmann::ordered_json start_fields(Job& job, const data::Split& split);

}  // namespace dtrain::job
