// Matrix products with strictly lower triangles; only blocks on and below the diagonal are
// computed.
#pragma once

#include <algorithm>
#include <cstdint>

#include "dtrain/kernels/gemm.h"

namespace dtrain::model::bdh {

/// Rows and columns per block; a multiple of kPanelColumns for every type.
inline constexpr std::int64_t kTriangleBlock = 32;

/// c = a bᵀ, or c += a bᵀ, in the blocks on and below the diagonal; other blocks are unchanged.
template <typename T>
void lower_outer(kernels::Gemm<T>& product, const kernels::Matrix<const T>& a,
                 const kernels::Matrix<const T>& b,
                 const kernels::Matrix<typename kernels::SumOf<T>::Type>& c, bool adds) {
  for (std::int64_t at = 0; at < c.columns; at += kTriangleBlock) {
    const std::int64_t columns = std::min(kTriangleBlock, c.columns - at);
    product.multiply(a.row_block(at, a.rows - at), b.row_block(at, columns).transposed(),
                     c.block(at, c.rows - at, at, columns), adds);
  }
}

/// c = l b for a lower triangle l.
template <typename T>
void lower_times(kernels::Gemm<T>& product, const kernels::Matrix<const T>& l,
                 const kernels::Matrix<const T>& b,
                 const kernels::Matrix<typename kernels::SumOf<T>::Type>& c) {
  for (std::int64_t at = 0; at < c.rows; at += kTriangleBlock) {
    const std::int64_t rows = std::min(kTriangleBlock, c.rows - at);
    product.write(l.block(at, rows, 0, at + rows), b.row_block(0, at + rows),
                  c.row_block(at, rows));
  }
}

/// c = lᵀ b for a lower triangle l.
template <typename T>
void lower_transposed_times(kernels::Gemm<T>& product, const kernels::Matrix<const T>& l,
                            const kernels::Matrix<const T>& b,
                            const kernels::Matrix<typename kernels::SumOf<T>::Type>& c) {
  for (std::int64_t at = 0; at < c.rows; at += kTriangleBlock) {
    const std::int64_t rows = std::min(kTriangleBlock, c.rows - at);
    product.write(l.block(at, l.rows - at, at, rows).transposed(), b.row_block(at, b.rows - at),
                  c.row_block(at, rows));
  }
}

/// Zeros the diagonal and the elements above it within the diagonal blocks.
template <typename T>
void clear_upper(const kernels::Matrix<T>& m) {
  for (std::int64_t i = 0; i < m.rows; ++i) {
    const std::int64_t end = std::min(m.columns, (i / kTriangleBlock + 1) * kTriangleBlock);
    std::fill(m.data + i * m.row_stride + i, m.data + i * m.row_stride + end, T{});
  }
}

/// c = l + lᵀ for the strictly lower triangle l of m; c may be m.
template <typename From, typename To>
void symmetric_from_lower(const kernels::Matrix<From>& m, const kernels::Matrix<To>& c) {
  for (std::int64_t i = 0; i < c.rows; ++i) {
    for (std::int64_t j = 0; j < i; ++j) {
      const To value = static_cast<To>(m.data[i * m.row_stride + j]);
      c.data[i * c.row_stride + j] = value;
      c.data[j * c.row_stride + i] = value;
    }
    c.data[i * c.row_stride + i] = To{};
  }
}

}  // namespace dtrain::model::bdh
