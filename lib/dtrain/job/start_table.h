// Formats what a run reports at its start: the table on the console and the "start" event in
// metrics.jsonl.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "dtrain/comm/world.h"
#include "dtrain/data/split.h"
#include "dtrain/job/cpu_type.h"
#include "dtrain/parallel/plan/rank_plan.h"

namespace dtrain::job {

/// Returns the backend to display. For a single rank, whose world does not communicate, it is the
/// backend setting.
[[nodiscard]] std::string backend_text(const config::Config& config, const comm::World& world);

/// Returns the reproducibility class. Runs of equal classes have equal bits in every loss, norm and
/// weight, for any size of the data axis, if the numbers of ranks and microbatches are powers of
/// two.
[[nodiscard]] std::string reproducibility_class(const config::Config& config, const CpuTypes& cpus);

/// Returns a line with each rank's mesh coordinate, and a line with the rank groups of each
/// multi-rank axis, abbreviated if long. Empty unless at least two axes have several ranks.
[[nodiscard]] std::string mesh_lines(const mesh::DeviceMesh& mesh);

/// Inputs of the start table.
struct StartFacts {
  const config::Config& config;
  const comm::World& world;
  const model::Model& model;  ///< the whole model
  const parallel::RankPlan& plan;
  const CpuTypes& cpus;
  const data::Split& split;
  std::int64_t data_step = 0;  ///< step after which the run started to read this data
};

/// Returns the start table: model, data, batch, layout, device, compression, memory, recomputation
/// and run folder, in at most 12 lines, without a final newline.
[[nodiscard]] std::string start_table(const StartFacts& facts);

/// Returns the details of --verbose, without a final newline: model settings, data files of a
/// mixture, rank groups, pipeline, traffic, graphs and reproducibility class.
[[nodiscard]] std::string start_details(const StartFacts& facts);

/// Returns the fields of the "start" event in metrics.jsonl.
[[nodiscard]] nlohmann::ordered_json start_fields(const StartFacts& facts);

}  // namespace dtrain::job
