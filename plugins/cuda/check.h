// Errors of CUDA as errors of dtrain, and checks of what CUDA finds on this machine.
#pragma once

#include <cuda_runtime_api.h>

namespace dtrain::cuda {

/// Throws Error{device} saying what failed while doing `what`, or Error{memory} where the GPU has
/// too little of it; unless the status is a success.
void check(cudaError_t status, const char* what);

/// Returns if the CUDA runtime and NCCL that were loaded are the ones that LibTorch and this plugin
/// were built with, as far as their interfaces go.
///
/// Throws: Error{device} naming the file that does not fit, and the versions.
void check_versions();

/// Returns if a driver is there that serves this CUDA.
///
/// Throws: Error{device} saying what is missing and what to do.
void check_driver();

}  // namespace dtrain::cuda
