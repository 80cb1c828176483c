// Marks functions that GPU kernels share with CPU code.
#pragma once

/// Compiles a function for both CPU and GPU under nvcc; otherwise empty.
#if defined(__CUDACC__)
#define DTRAIN_DEVICE_FUNCTION __host__ __device__
#else
#define DTRAIN_DEVICE_FUNCTION
#endif
