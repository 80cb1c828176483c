// The process groups of the tensor axis.
#pragma once

#include "dtrain/comm/process_group.h"

namespace dtrain::parallel {

/// The ranks that compute the same blocks on the same data, each a part of every block.
struct TensorGroups {
  comm::ProcessGroup* axis = nullptr;  ///< all of them
  comm::ProcessGroup* head = nullptr;  ///< those that share this rank's head; null: none does
};

}  // namespace dtrain::parallel
