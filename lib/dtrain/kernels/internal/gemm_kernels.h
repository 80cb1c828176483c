// Table of the GEMM kernels that are compiled for each instruction set.
#pragma once

#include "dtrain/kernels/instruction_set.h"

namespace dtrain::kernels {

/// Columns of a panel: the contiguous columns of the right operand that are multiplied at once.
template <typename T>
inline constexpr long kPanelColumns = 128 / sizeof(T);

/// The operands of one panel of C: a (rows x depth) times b (depth x kPanelColumns).
///
/// Units: strides count elements; rows of b are contiguous.
template <typename T>
struct PanelOperands {
  const T* a;
  long a_row;
  long a_column;
  const T* b;
  long b_row;
  long depth;
};

/// The kernels of one instruction set for element type T.
template <typename T>
struct GemmKernels {
  /// Writes (or adds to) `rows` rows of a panel of C. Each element is summed over the depth in
  /// ascending order, so its bits do not depend on `rows`.
  void (*multiply)(const PanelOperands<T>& operands, long rows, T* c, long c_row, bool adds);
  /// out[n] = even[n] in the low half, odd[n] in the high half.
  void (*interleave)(const unsigned short* even, const unsigned short* odd, long count,
                     unsigned* out);
  /// Transposes: to[k * to_row + n] = from[n * from_row + k] for n < columns, k < depth. Copies bit
  /// patterns without interpreting them.
  void (*transpose)(const T* from, long from_row, long columns, long depth, T* to, long to_row);
};

extern const GemmKernels<float> kFloatGemmBaseline;
extern const GemmKernels<float> kFloatGemmAvx2;
extern const GemmKernels<float> kFloatGemmAvx512;
extern const GemmKernels<double> kDoubleGemmBaseline;
extern const GemmKernels<double> kDoubleGemmAvx2;
extern const GemmKernels<double> kDoubleGemmAvx512;

}  // namespace dtrain::kernels
