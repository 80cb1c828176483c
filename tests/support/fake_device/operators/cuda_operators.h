// The tensor requirements of LibTorch 2.11's CUDA kernels, for every ATen operator that dtrain
// calls on a device. docs/guide/devices.md documents the same table.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include <set>
#include <string>
#include <string_view>

namespace dtrain::testing::fake {

/// Operators have short names, without "aten::", the overload and the "_" of in-place variants:
/// "add" stands for add.Tensor, add_ and add.out.

/// Returns the operators in the table.
[[nodiscard]] std::set<std::string> listed_operators();
/// Returns the operators that this process has called on a fake device, except those that only
/// create, resize or view tensors.
///
/// Threads: any.
[[nodiscard]] std::set<std::string> called_operators();
/// Returns the called operators that are not in the table.
///
/// Threads: any.
[[nodiscard]] std::set<std::string> unlisted_operators();

/// Records a kernel call by the operator's short name; for the fake device's implementation.
///
/// Threads: any.
void note_call(std::string_view name);
/// Records a call; rejects tensors that the operator's CUDA kernel rejects, or for which its
/// results would depend on addresses. For the fake device's implementation. arguments: all
/// arguments of the operator.
///
/// Throws:  c10::Error naming the operator, its requirement and the argument.
/// Threads: any.
void check_as_cuda(const c10::OperatorHandle& op, const torch::jit::Stack& arguments);
/// Makes the CPU's layer norm of 16-bit rows use float32 statistics, as CUDA's does without a
/// weight, by adding a weight of float32 ones. Does not change other operators' arguments. For the
/// fake device's implementation.
void compute_as_cuda(const c10::OperatorHandle& op, torch::jit::Stack& host_arguments);

}  // namespace dtrain::testing::fake
