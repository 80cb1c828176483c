// What an operator returns, before it has run.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <torch/library.h>

#include <functional>
#include <optional>
#include <vector>

namespace dtrain::testing::fake {

/// The kind of an operator's results.
enum class Results {
  /// Share memory with arguments; nothing is computed.
  views,
  /// Are arguments that it wrote, or nothing.
  written_arguments,
  new_tensors,
  /// New tensors whose shape depends on values.
  tensors_of_unknown_shape,
  /// Numbers for the host.
  host_values
};

/// Looks at the schema, and at the arguments, the last ones of `stack`.
[[nodiscard]] Results results_of(const c10::OperatorHandle& op, const torch::jit::Stack& stack);

/// Replaces the defined tensors in a value: a tensor, a list of them, a list of optional ones.
void replace_tensors(c10::IValue& value,
                     const std::function<at::Tensor(const at::Tensor&)>& replacement);

/// The defined tensors among these values.
[[nodiscard]] std::vector<at::Tensor> tensors_in(torch::jit::Stack values);

/// Tensors with the sizes, strides and dtypes of the new tensors that this operator returns for
/// these CPU arguments, found on tensors without memory or on zeros. Nothing: only running the
/// operator tells.
[[nodiscard]] std::optional<torch::jit::Stack> predict_results(const c10::OperatorHandle& op,
                                                               const torch::jit::Stack& arguments);

}  // namespace dtrain::testing::fake
