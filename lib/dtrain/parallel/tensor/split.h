// The ranks over which a product is split.
#pragma once

#include "dtrain/comm/process_group.h"

namespace dtrain::parallel {

/// The ranks over which a product is split, and how finely.
struct ProductSplit {
  comm::ProcessGroup& group;
  bool shares_heads = false;  ///< parts are smaller than a head: see partial_product
};

}  // namespace dtrain::parallel
