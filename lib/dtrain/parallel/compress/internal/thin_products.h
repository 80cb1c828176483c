// Products with tall-skinny matrices. On a CPU the bits do not depend on the number of threads, so
// ranks with different numbers of threads compute equal bits.
#pragma once

#include <ATen/core/Tensor.h>

namespace dtrain::parallel {

/// Writes a (n, k) times b (k, m) to `product` (n, m). float32 or float64; one stride of each
/// factor must be 1.
void multiply(const at::Tensor& a, const at::Tensor& b, const at::Tensor& product);

/// As multiply(), with equal bits on all CPU types; for results that must be equal on all ranks.
void multiply_reproducibly(const at::Tensor& a, const at::Tensor& b, const at::Tensor& product);

/// Subtracts a (n, k) times b (k, m) from `from` (n, m). Rows of `a` must be contiguous.
void subtract_product(const at::Tensor& a, const at::Tensor& b, const at::Tensor& from);

/// Orthonormalises the columns of `matrix` (n, k), contiguous, in place; a column that depends
/// linearly on earlier ones becomes 0. Runs on the host in float64, with equal bits on all CPU
/// types.
///
/// Source: modified Gram-Schmidt.
void make_orthonormal(const at::Tensor& matrix);

}  // namespace dtrain::parallel
