// The one table from a strategy to what the ranks do: nothing below or above knows strategy names.
#pragma once

#include "dtrain/config/config.h"
#include "dtrain/mesh/device_mesh.h"
#include "dtrain/parallel/data/data_axis.h"

namespace dtrain::parallel {

/// A strategy, resolved. Settings that mean the same give equal plans.
struct Plan {
  mesh::MeshShape mesh;
  DataPlan data;

  bool operator==(const Plan&) const = default;
};

/// `layout` is resolved (config::resolve).
///
/// Throws: Error{internal} for a strategy that config::resolve would have refused.
[[nodiscard]] Plan make_plan(const config::LayoutConfig& layout);

}  // namespace dtrain::parallel
