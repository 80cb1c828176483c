// Operators of our own, for which LibTorch's dispatcher finds the kernel of the device that the
// tensors are on; and one of them, a sum in a fixed order.
#pragma once

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <utility>

namespace dtrain::device {

template <typename Signature>
class Operator;

/// Calls an operator that was defined with TORCH_LIBRARY_FRAGMENT(dtrain, ...). Its kernel for the
/// CPU is registered beside the definition; a plugin registers its device's under the same name.
/// The schema names the tensors that it writes, and that is all that a device knows of it. Kernels
/// never record a graph: what is differentiable is a function that calls one operator each way.
///
/// Throws:  c10::Error where nothing of that name and signature is registered.
/// Threads: any.
template <typename Result, typename... Args>
class Operator<Result(Args...)> {
 public:
  explicit Operator(const char* name)
      : handle_(c10::Dispatcher::singleton()
                    .findSchemaOrThrow(name, "")
                    .template typed<Result(Args...)>()) {}

  Result operator()(Args... args) const {
    const at::AutoDispatchBelowADInplaceOrView no_graph;
    return handle_.call(std::forward<Args>(args)...);
  }

 private:
  c10::TypedOperatorHandle<Result(Args...)> handle_;
};

/// values (..., n), n > 0, of a floating point type -> (...) float64: each row's values, widened
/// and added from the first to the last, beginning with 0. Equal bits whatever the number of rows.
[[nodiscard]] at::Tensor ordered_sum(const at::Tensor& values);

}  // namespace dtrain::device
