// The operators of LibTorch on a fake device.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

namespace dtrain::testing::fake {

/// Runs any operator by its CPU kernel, on CPU tensors over the device's memory: now or late
/// (Execution). A view makes no kernel.
///
/// Throws:  c10::Error for host tensors among the device's (but for numbers, which are tensors
///          without dimensions), for tensors of several devices and for those that CUDA refuses
///          (cuda_operators.h); what the kernel throws; AcceleratorError if the device is lost.
void run_by_cpu_kernel(const c10::OperatorHandle& op, torch::jit::Stack* stack);

/// Registers the operators that make, resize, alias and copy tensors.
void register_tensor_operators(torch::Library& aten);

/// _copy_from: between host and device, or on devices. Asynchronous if `non_blocking` and the
/// host's memory is pinned, or if it comes from pageable memory, which is copied aside before it
/// returns.
at::Tensor copy_from(const at::Tensor& source, const at::Tensor& target, bool non_blocking);

}  // namespace dtrain::testing::fake
