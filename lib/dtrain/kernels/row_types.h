// The element types of row kernels, for code that uses LibTorch.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>
#include <c10/util/BFloat16.h>

#include "dtrain/base/error.h"
#include "dtrain/kernels/gemm.h"
#include "dtrain/kernels/row_values.h"

namespace dtrain::kernels {

/// The accumulation dtype for elements of type S.
template <typename S>
inline constexpr at::ScalarType kWideType =
    c10::CppTypeToScalarType<typename SumOf<S>::Type>::value;

/// Returns pass(S{}) for the C++ type S of `type`; fused kernels support float, double and bfloat16.
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

/// Casts pointers to the element types of row kernels.
inline float* stored(float* data) { return data; }
inline double* stored(double* data) { return data; }
inline Bfloat16Bits* stored(c10::BFloat16* data) { return reinterpret_cast<Bfloat16Bits*>(data); }

/// Returns the sums that a contiguous tensor (rows, 2) of W holds.
template <typename W>
[[nodiscard]] LogSum<W>* log_sums_in(const at::Tensor& tensor) {
  return reinterpret_cast<LogSum<W>*>(tensor.mutable_data_ptr<W>());
}

}  // namespace dtrain::kernels
