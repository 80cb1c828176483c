// The table and the metrics line with which a run begins.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "dtrain/comm/world.h"
#include "dtrain/data/split.h"
#include "dtrain/job/cpu_type.h"
#include "dtrain/parallel/plan/rank_plan.h"

namespace dtrain::job {

/// The name of the backend for users: that of the setting where a single rank communicates with
/// nobody, whatever its world is made of.
[[nodiscard]] std::string backend_text(const config::Config& config, const comm::World& world);

/// Runs with equal text here have equal bits in every loss, norm and weight over the data axis, as
/// far as counts of ranks and microbatches are powers of two.
[[nodiscard]] std::string reproducibility_class(const config::Config& config, const CpuTypes& cpus);

/// The place of each rank, and for each axis of several ranks which ranks are a group along it: a
/// line each, shortened where there are many. Empty unless several axes have several ranks.
[[nodiscard]] std::string mesh_lines(const mesh::DeviceMesh& mesh);

/// The parts of a job that its start reports.
struct StartFacts {
  const config::Config& config;
  const comm::World& world;
  const model::Model& model;  ///< of all ranks together
  const parallel::RankPlan& plan;
  const CpuTypes& cpus;
  const data::Split& split;
  std::int64_t data_step = 0;  ///< after which the run began this data
};

/// What a user acts on: model, data, batch, layout, device, compression, memory, recomputation and
/// run folder, in at most 12 lines, the last one without a newline.
[[nodiscard]] std::string start_table(const StartFacts& facts);

/// The rest, for --verbose: settings of the model, files of a mixture, groups of ranks, pipeline,
/// traffic, graphs and the reproducibility class; likewise.
[[nodiscard]] std::string start_details(const StartFacts& facts);

/// The fields of the "start" line of metrics.jsonl.
[[nodiscard]] nlohmann::ordered_json start_fields(const StartFacts& facts);

}  // namespace dtrain::job
