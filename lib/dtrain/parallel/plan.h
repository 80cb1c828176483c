// The one table from a strategy to what the ranks do: nothing below or above knows strategy names.
#pragma once

#include <cstdint>

#include "dtrain/config/config.h"
#include "dtrain/mesh/device_mesh.h"

namespace dtrain::parallel {

/// A strategy, resolved.
struct Plan {
  mesh::MeshShape mesh;
};

/// Throws: Error{internal} for a strategy that config::resolve would have refused.
[[nodiscard]] Plan make_plan(const config::LayoutConfig& layout);

}  // namespace dtrain::parallel
