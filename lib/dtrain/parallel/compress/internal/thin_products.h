// Products with matrices of few columns. On a CPU their bits do not depend on the threads: ranks
// that have different numbers of them compute the same.
#pragma once

#include <ATen/core/Tensor.h>

namespace dtrain::parallel {

/// product (n, m) = a (n, k) b (k, m). float32 or float64; one of the strides of each factor is 1.
void multiply(const at::Tensor& a, const at::Tensor& b, const at::Tensor& product);

/// The same with equal bits on CPUs of all types, for what all ranks must hold alike.
void multiply_alike(const at::Tensor& a, const at::Tensor& b, const at::Tensor& product);

/// from (n, m) -= a (n, k) b (k, m); a's rows are contiguous.
void subtract_product(const at::Tensor& a, const at::Tensor& b, const at::Tensor& from);

/// Replaces the columns of `matrix` (n, k), contiguous, by orthonormal ones that span the same
/// space; a column that depends on those before it becomes 0. Computed by the host in float64, with
/// equal bits on CPUs of all types.
///
/// Source: modified Gram-Schmidt.
void make_orthonormal(const at::Tensor& matrix);

}  // namespace dtrain::parallel
