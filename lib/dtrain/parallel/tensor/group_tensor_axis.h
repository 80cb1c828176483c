// The tensor axis over ranks. Read splits.h first: everything here is one of these two cuts,
// over all ranks of the axis or over those of a subgroup.
#pragma once

#include <memory>

#include "dtrain/mesh/mesh_groups.h"
#include "dtrain/model/tensor_axis.h"

namespace dtrain::parallel {

/// The tensor axis of this rank, with the subgroups that its model declares; plain arithmetic where
/// it has one rank. The groups must outlive it.
///
/// Threads: one, which runs forward and backward passes.
[[nodiscard]] std::unique_ptr<model::TensorAxis> make_tensor_axis(const mesh::MeshGroups& groups);

}  // namespace dtrain::parallel
