// Calls our own operators through LibTorch's dispatcher, which selects the kernel for the tensors'
// device; declares the operator ordered_sum.
#pragma once

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <utility>

namespace dtrain::device {

template <typename Signature>
class Operator;

/// Calls an operator defined with TORCH_LIBRARY_FRAGMENT(dtrain, ...). The CPU kernel is registered
/// next to the definition; a device plugin registers its kernel under the same name. The schema
/// declares which tensors the operator writes. Operators record no autograd graph; differentiable
/// functions call one operator in forward and one in backward.
///
/// Throws:  c10::Error if no operator of that name and signature is registered.
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

/// Sums each row in float64, from the first element to the last: the same bits for any number of
/// rows.
///
/// Shapes: values (..., n), n > 0, floating point; returns (...) float64.
[[nodiscard]] at::Tensor ordered_sum(const at::Tensor& values);

}  // namespace dtrain::device
