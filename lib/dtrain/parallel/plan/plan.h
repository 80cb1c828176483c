// The one table from a strategy to what the ranks do: nothing below or above knows strategy names.
#pragma once

#include <cstdint>
#include <vector>

#include "dtrain/config/config.h"
#include "dtrain/mesh/device_mesh.h"
#include "dtrain/parallel/data/data_axis.h"
#include "dtrain/parallel/pipeline/schedule.h"

namespace dtrain::parallel {

/// How the model is cut into the parts of a pipeline, and in which order microbatches go through.
struct PipelinePlan {
  PipelineKind kind = PipelineKind::one_f_one_b;
  std::int64_t chunks = 1;          ///< parts on each stage
  std::vector<std::int64_t> split;  ///< levels of each part; empty: balanced

  bool operator==(const PipelinePlan&) const = default;
};

/// A strategy, resolved. Settings that mean the same give equal plans.
struct Plan {
  mesh::MeshShape mesh;
  DataPlan data;
  PipelinePlan pipeline;      ///< as it is by default where there is one stage
  bool splits_vocab = false;  ///< over the tensor axis; false where that has one rank

  bool operator==(const Plan&) const = default;
};

/// `layout` is resolved (config::resolve).
///
/// Throws: Error{internal} for a strategy that config::resolve would have refused.
[[nodiscard]] Plan make_plan(const config::LayoutConfig& layout);

}  // namespace dtrain::parallel
