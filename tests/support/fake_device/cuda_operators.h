// The tensor requirements of LibTorch 2.11's CUDA kernels, for every ATen operator that dtrain
// calls on a device. docs/guide/devices.md documents the same table.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include <set>
#include <string>
#include <string_view>

namespace dtrain::testing::fake {

/// Operators have short names: without "aten::", the overload and the "_" of in-place variants. "add"
/// stands for add.Tensor, add_ and add.out.

/// The operators of the table.
[[nodiscard]] std::set<std::string> listed_operators();
/// The operators that this process has called on a fake device, except those that only create,
/// resize or view tensors.
///
/// Threads: any.
[[nodiscard]] std::set<std::string> called_operators();
/// The called operators that the table lacks.
///
/// Threads: any.
[[nodiscard]] std::set<std::string> unlisted_operators();

/// For the device's own code: records a kernel call by its short name.
///
/// Threads: any.
void note_call(std::string_view name);
/// For the device's own code: records a call, and rejects tensors that the operator's CUDA kernel
/// rejects, or whose results would depend on their address. arguments: all of the operator's.
///
/// Throws:  c10::Error naming the operator, its requirement and the argument.
/// Threads: any.
void check_as_cuda(const c10::OperatorHandle& op, const torch::jit::Stack& arguments);
/// For the device's own code: makes the CPU's layer norm of 16-bit rows keep float32 statistics, as
/// CUDA's does without a weight, by passing float32 ones. Other operators' arguments are unchanged.
void compute_as_cuda(const c10::OperatorHandle& op, torch::jit::Stack& host_arguments);

}  // namespace dtrain::testing::fake
