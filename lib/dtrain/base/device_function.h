// Marks functions that kernels of a device share with the code for the CPU.
#pragma once

/// Before a function: it is compiled for GPUs, too, where the compiler is one for GPUs.
#if defined(__CUDACC__)
#define DTRAIN_DEVICE_FUNCTION __host__ __device__
#else
#define DTRAIN_DEVICE_FUNCTION
#endif
