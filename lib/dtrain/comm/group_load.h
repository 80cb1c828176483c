// The work of a group, as far as the memory of its transport follows from it.
#pragma once

#include <cstdint>

namespace dtrain::comm {

/// Units: ranks, and bytes of one tensor.
struct GroupLoad {
  std::int64_t size = 1;     ///< of the group
  bool is_first = true;      ///< this rank is the group's first
  std::int64_t reduced = 0;  ///< the largest tensor that is reduced
  std::int64_t foreign = 0;  ///< the largest one of a collective that World::allocate has not given
  std::int64_t peers = 0;    ///< ranks that are sent such tensors
};

}  // namespace dtrain::comm
