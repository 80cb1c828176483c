// The numbers that fused blocks compute in.
#pragma once

#include <ATen/core/Tensor.h>

#include "dtrain/base/error.h"
#include "dtrain/kernels/product.h"

namespace dtrain::model::bdh {

/// What numbers S are summed in.
template <typename S>
inline constexpr at::ScalarType kWideType =
    c10::CppTypeToScalarType<typename kernels::SumOf<S>::Type>::value;

/// Returns pass(S{}) for a type that fused blocks compute in.
template <typename Pass>
[[nodiscard]] auto for_type(at::ScalarType type, const Pass& pass) {
  switch (type) {
    case at::kFloat:
      return pass(float{});
    case at::kDouble:
      return pass(double{});
    case at::kBFloat16:
      return pass(c10::BFloat16{});
    default:
      base::fail(base::ErrorKind::internal, "no fused kernels for {}", at::toString(type));
  }
}

}  // namespace dtrain::model::bdh
