// Errors of CUDA as errors of dtrain.
#pragma once

#include <cuda_runtime_api.h>

namespace dtrain::cuda {

/// Throws Error{device} saying what failed while doing `what`, or Error{memory} where the GPU has
/// too little of it; unless the status is a success.
void check(cudaError_t status, const char* what);

}  // namespace dtrain::cuda
