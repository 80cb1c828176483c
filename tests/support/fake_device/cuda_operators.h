// What LibTorch 2.11's CUDA kernels demand of their tensors, for every ATen operator that dtrain
// calls on a device. docs/guide/devices.md has the same table in words.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include <set>
#include <string>
#include <string_view>

namespace dtrain::testing::fake {

/// Operators go by short names: without "aten::", the overload and the "_" of in-place ones. "add"
/// stands for add.Tensor, add_ and add.out.

/// The operators of the table.
[[nodiscard]] std::set<std::string> listed_operators();
/// The operators that this process has called on a fake device, apart from those that only make,
/// resize or view tensors.
///
/// Threads: any.
[[nodiscard]] std::set<std::string> called_operators();
/// Those of them that the table lacks.
///
/// Threads: any.
[[nodiscard]] std::set<std::string> unlisted_operators();

/// For the device's own code: notes the call of a kernel by its short name.
///
/// Threads: any.
void note_call(std::string_view name);
/// For the device's own code: notes a call, and refuses tensors that the operator's CUDA kernel
/// refuses, or computes with other bits from place to place. arguments: all of the operator's.
///
/// Throws:  c10::Error naming the operator, what it takes and what it got.
/// Threads: any.
void check_as_cuda(const c10::OperatorHandle& op, const torch::jit::Stack& arguments);
/// For the device's own code: lets the CPU's layer norm of 16-bit rows keep float32 statistics, as
/// CUDA's does without a weight: it gets ones in float32. Other operators keep their arguments.
void compute_as_cuda(const c10::OperatorHandle& op, torch::jit::Stack& host_arguments);

}  // namespace dtrain::testing::fake
