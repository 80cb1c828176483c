// Runs LibTorch's operators on a fake device.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

namespace dtrain::testing::fake {

/// Runs any operator with its CPU kernel, on CPU tensors over the device's memory, at once or late
/// (Execution). Views launch no kernel.
///
/// Throws:  c10::Error for host tensors among device tensors (except tensors without dimensions),
///          for tensors of several devices and for tensors that CUDA rejects (cuda_operators.h);
///          any exception of the kernel; AcceleratorError if the device is lost.
void run_by_cpu_kernel(const c10::OperatorHandle& op, torch::jit::Stack* stack);

/// Registers the operators that create, resize, alias and copy tensors.
void register_tensor_operators(torch::Library& aten);

/// Implements _copy_from, between host and device or between devices. Asynchronous if
/// `non_blocking` is true and host memory is pinned, or if the source is pageable memory; that is
/// read before this returns.
at::Tensor copy_from(const at::Tensor& source, const at::Tensor& target, bool non_blocking);

}  // namespace dtrain::testing::fake
