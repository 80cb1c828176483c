// The tensor axis over ranks. Read column_split.h and row_split.h first: everything here is one of
// these two cuts, over all ranks of the axis or over those that share a head.
#pragma once

#include <memory>

#include "dtrain/model/tensor_axis.h"
#include "dtrain/parallel/tensor/tensor_groups.h"

namespace dtrain::parallel {

/// The axis of the ranks in groups.axis, which must outlive it. groups.head is null unless several
/// ranks share a head.
///
/// Threads: one, which runs forward and backward passes.
[[nodiscard]] std::unique_ptr<model::TensorAxis> make_tensor_axis(const TensorGroups& groups);

}  // namespace dtrain::parallel
