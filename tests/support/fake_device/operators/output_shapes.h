// Predicts the results of an operator without running it.
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
  /// Views of arguments; nothing is computed.
  views,
  /// Arguments that the operator wrote, or no results.
  written_arguments,
  new_tensors,
  /// New tensors whose shape depends on values.
  tensors_of_unknown_shape,
  /// Values for the host.
  host_values
};

/// Classifies an operator by its schema and its arguments, which are the last values of `stack`.
[[nodiscard]] Results results_of(const c10::OperatorHandle& op, const torch::jit::Stack& stack);

/// Replaces the defined tensors in a value: a tensor, a list of tensors or of optional tensors.
void replace_tensors(c10::IValue& value,
                     const std::function<at::Tensor(const at::Tensor&)>& replacement);

/// Returns the defined tensors among these values.
[[nodiscard]] std::vector<at::Tensor> tensors_in(torch::jit::Stack values);

/// Returns tensors with the sizes, strides and dtypes of the operator's results for these CPU
/// arguments, determined with meta tensors or zeros. Empty if the shapes depend on values.
[[nodiscard]] std::optional<torch::jit::Stack> predict_results(const c10::OperatorHandle& op,
                                                               const torch::jit::Stack& arguments);

}  // namespace dtrain::testing::fake
