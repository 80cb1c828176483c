// Translates CUDA errors, and checks the CUDA driver, runtime and NCCL of this machine.
#pragma once

#include <cuda_runtime_api.h>

namespace dtrain::cuda {

/// Throws Error{device}, or Error{memory} if the GPU is out of memory, unless `status` is success.
/// what: the attempted operation, for the message.
void check(cudaError_t status, const char* what);

/// Checks that the loaded CUDA runtime and NCCL are compatible with the versions that LibTorch and
/// this plugin were built with.
///
/// Throws: Error{device} naming the incompatible file and the versions.
void check_versions();

/// Checks that the installed driver supports this CUDA version.
///
/// Throws: Error{device} saying what is missing and what to do.
void check_driver();

}  // namespace dtrain::cuda
