#include "cuda/check.h"

#include "dtrain/base/error.h"

namespace dtrain::cuda {

void check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  base::fail(
      status == cudaErrorMemoryAllocation ? base::ErrorKind::memory : base::ErrorKind::device,
      "CUDA: {}: {} ({})", what, cudaGetErrorString(status), cudaGetErrorName(status));
}

}  // namespace dtrain::cuda
