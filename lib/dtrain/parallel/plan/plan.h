// Makes one mesh, one data axis and one pipeline of a layout, whatever strategy named it.
#pragma once

#include <cstdint>
#include <vector>

#include "dtrain/config/config.h"
#include "dtrain/mesh/device_mesh.h"
#include "dtrain/parallel/data/data_axis.h"

namespace dtrain::parallel {

/// How a pipeline cuts the model into parts, and in which order microbatches go through them.
struct PipelinePlan {
  config::PipelineSetting order = {};
  std::vector<std::int64_t> split;  ///< levels of each part; empty: balanced

  bool operator==(const PipelinePlan&) const = default;
};

/// A layout's axes. Settings that mean the same give equal plans.
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
