// Products of matrices that fit a core's cache, computed by the calling thread.
#pragma once

#include <c10/util/BFloat16.h>

#include <cstdint>
#include <vector>

#include "dtrain/kernels/instruction_set.h"
#include "dtrain/kernels/matrix.h"
#include "dtrain/kernels/product_kernels.h"

namespace dtrain::kernels {

/// The type that products of T are summed in.
template <typename T>
struct SumOf {
  using Type = T;
};
template <>
struct SumOf<c10::BFloat16> {
  using Type = float;
};

/// Multiplies matrices of float or double. Of the strides of a factor one must be 1; rows of C have
/// their elements side by side.
///
/// Each element of C is summed over the depth in a fixed order, whatever the other sizes are: the
/// same bits however C is cut into blocks, on any number of threads.
///
/// Threads: one caller; holds its scratch memory.
template <typename T>
class Product {
 public:
  using Sum = typename SumOf<T>::Type;

  /// With the kernels of this CPU, whose rounding depends on its type.
  Product() : Product(instruction_set()) {}
  /// With those of a set that the CPU has: with the baseline's all CPUs round alike, and are slower.
  explicit Product(InstructionSet set);

  /// c = a b
  void write(const Matrix<const T>& a, const Matrix<const T>& b, const Matrix<Sum>& c) {
    multiply(a, b, c, false);
  }
  /// c += a b
  void add(const Matrix<const T>& a, const Matrix<const T>& b, const Matrix<Sum>& c) {
    multiply(a, b, c, true);
  }

  /// c = a b, or c += a b
  void multiply(const Matrix<const T>& a, const Matrix<const T>& b, const Matrix<T>& c, bool adds);

 private:
  void multiply_margin(PanelFactors<T> factors, const Matrix<T>& c, bool adds);
  // b, of one panel, with rows of kPanelColumns.
  [[nodiscard]] const T* pack(const Matrix<const T>& b);

  const ProductKernels<T>& kernels_;
  std::vector<T> packed_;
  std::vector<T> margin_;  // of c, where it is narrower than a panel
};

/// The same for bfloat16, summed in float32: by oneDNN's kernels where the CPU multiplies bfloat16
/// (multiplies_bfloat16), else after widening. Equal calls give equal bits.
template <>
class Product<c10::BFloat16> {
 public:
  using Sum = float;
  using Factor = Matrix<const c10::BFloat16>;

  void write(const Factor& a, const Factor& b, const Matrix<float>& c) { multiply(a, b, c, false); }
  void add(const Factor& a, const Factor& b, const Matrix<float>& c) { multiply(a, b, c, true); }

  void multiply(const Factor& a, const Factor& b, const Matrix<float>& c, bool adds);

 private:
  void multiply_natively(const Factor& a, const Factor& b, const Matrix<float>& c, bool adds);
  void turn(const Factor& a);
  void multiply_widened(const Factor& a, const Factor& b, const Matrix<float>& c, bool adds);

  std::vector<c10::BFloat16> left_;   // a, with rows of neighbours
  std::vector<c10::BFloat16> right_;  // b, with pairs of rows interleaved
  Product<float> wide_;
  std::vector<float> wide_left_;
  std::vector<float> wide_right_;
};

extern template class Product<float>;
extern template class Product<double>;

/// A thread that has multiplied bfloat16 calls it before other code of oneDNN's may run in it: lets
/// go of what a CPU's tiles are set up for.
void release_tiles();

/// True where this process multiplies bfloat16 by instructions made for it.
[[nodiscard]] bool multiplies_bfloat16();

}  // namespace dtrain::kernels
