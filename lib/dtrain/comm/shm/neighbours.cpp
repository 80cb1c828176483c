#include "dtrain/comm/shm/neighbours.h"

#include <ATen/ops/zeros.h>

namespace dtrain::comm {

at::Tensor ThreadNeighbours::allocate(std::int64_t bytes) { return at::zeros({bytes}, at::kByte); }

}  // namespace dtrain::comm
