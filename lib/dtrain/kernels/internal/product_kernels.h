// The parts of a matrix product that are compiled for each instruction set.
#pragma once

#include "dtrain/kernels/instruction_set.h"

namespace dtrain::kernels {

/// Columns of the right factor that are multiplied at once, side by side in memory.
template <typename T>
inline constexpr long kPanelColumns = 128 / sizeof(T);

/// What one panel of C is the product of: a (rows x depth) times b (depth x kPanelColumns).
///
/// Units: strides count elements; columns of b lie side by side.
template <typename T>
struct PanelFactors {
  const T* a;
  long a_row;
  long a_column;
  const T* b;
  long b_row;
  long depth;
};

/// One instruction set's kernels for numbers of type T.
template <typename T>
struct ProductKernels {
  /// Writes, or adds, `rows` rows of a panel of C. Each of its elements is a sum over the depth in
  /// ascending order, so that its bits do not depend on how many rows are asked for at once.
  void (*multiply)(const PanelFactors<T>& factors, long rows, T* c, long c_row, bool adds);
  /// out[n] = even[n] in the low half, odd[n] in the high half.
  void (*interleave)(const unsigned short* even, const unsigned short* odd, long count,
                     unsigned* out);
  /// Lays down a transposed matrix: to[k * to_row + n] = from[n * from_row + k] for n < columns,
  /// k < depth. Copies bits, whatever they mean.
  void (*transpose)(const T* from, long from_row, long columns, long depth, T* to, long to_row);
};

extern const ProductKernels<float> kFloatProductBaseline;
extern const ProductKernels<float> kFloatProductAvx2;
extern const ProductKernels<float> kFloatProductAvx512;
extern const ProductKernels<double> kDoubleProductBaseline;
extern const ProductKernels<double> kDoubleProductAvx2;
extern const ProductKernels<double> kDoubleProductAvx512;

}  // namespace dtrain::kernels
