// Products of matrices that fit a core's cache, computed by the calling thread.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/util/BFloat16.h>

#include <cstdint>
#include <string>

#include "dtrain/kernels/instruction_set.h"
#include "dtrain/kernels/internal/product_kernels.h"

namespace dtrain::kernels {

/// A matrix that lies in memory of its owner.
///
/// Units: strides count elements.
template <typename T>
struct Matrix {
  T* data = nullptr;
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::int64_t row_stride = columns;
  std::int64_t column_stride = 1;

  [[nodiscard]] T* row(std::int64_t index) const { return data + index * row_stride; }
  [[nodiscard]] Matrix transposed() const {
    return {data, columns, rows, column_stride, row_stride};
  }
  [[nodiscard]] Matrix block(std::int64_t row, std::int64_t num_rows, std::int64_t column,
                             std::int64_t num_columns) const {
    return {data + row * row_stride + column * column_stride, num_rows, num_columns, row_stride,
            column_stride};
  }
  [[nodiscard]] Matrix row_block(std::int64_t row, std::int64_t num_rows) const {
    return block(row, num_rows, 0, columns);
  }
  [[nodiscard]] Matrix column_block(std::int64_t column, std::int64_t num_columns) const {
    return block(0, rows, column, num_columns);
  }
  [[nodiscard]] Matrix<const T> read_only() const {
    return {data, rows, columns, row_stride, column_stride};
  }
};

/// Memory of one thread, which LibTorch counts; without initial values.
template <typename T>
class Scratch {
 public:
  /// Makes room for `count` elements; where there is room already, nothing changes, else what was
  /// there is lost.
  void require(std::int64_t count) {
    if (count <= count_) return;
    count_ = 0;
    memory_.reset();  // so that both never exist at once
    memory_ = at::empty({count * static_cast<std::int64_t>(sizeof(T))}, at::kByte);
    count_ = count;
  }
  [[nodiscard]] T* data() const { return static_cast<T*>(memory_.mutable_data_ptr()); }

 private:
  at::Tensor memory_;
  std::int64_t count_ = 0;
};

/// The type that products of T are summed in.
template <typename T>
struct SumOf {
  using Type = T;
};
template <>
struct SumOf<c10::BFloat16> {
  using Type = float;
};

/// How large the right factor of a product is: it decides how much memory the product works in.
struct FactorSize {
  std::int64_t depth = 0;
  std::int64_t columns = 0;
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

  /// Takes the memory to work in for right factors up to this size, which the first of them would
  /// take otherwise; bytes: as much.
  void reserve(const FactorSize& most);
  [[nodiscard]] static std::int64_t bytes(const FactorSize& most);

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
  Scratch<T> packed_;
  Scratch<T> margin_;  // of c, where it is narrower than a panel
};

/// The depth of the product that is computed for one of this depth of bfloat16, which zeros fill
/// up. AMX multiplies 32 numbers of a row at once: with another depth oneDNN makes smaller steps,
/// and with an odd one it has no kernel, which LibTorch does not notice.
[[nodiscard]] constexpr std::int64_t padded_depth(std::int64_t depth) {
  return (depth + 31) / 32 * 32;
}

/// How this process multiplies bfloat16: by the CPU's own instructions, through oneDNN, or as
/// float32.
enum class Bfloat16Path : std::uint8_t { widened, avx512_bf16, amx };

[[nodiscard]] Bfloat16Path bfloat16_path();

/// Why the path is `widened`: what the CPU lacks, or the setting that keeps its instructions from
/// being used. Empty: it is another one.
[[nodiscard]] std::string why_bfloat16_is_widened();

/// The same for bfloat16, summed in float32: by oneDNN's kernels where the CPU multiplies bfloat16
/// (bfloat16_path), else after widening. Equal calls give equal bits: the depth is cut into blocks
/// by its size alone, whose sums are added in order.
template <>
class Product<c10::BFloat16> {
 public:
  using Sum = float;
  using Factor = Matrix<const c10::BFloat16>;

  void reserve(const FactorSize& most);
  [[nodiscard]] static std::int64_t bytes(const FactorSize& most);

  void write(const Factor& a, const Factor& b, const Matrix<float>& c) { multiply(a, b, c, false); }
  void add(const Factor& a, const Factor& b, const Matrix<float>& c) { multiply(a, b, c, true); }

  void multiply(const Factor& a, const Factor& b, const Matrix<float>& c, bool adds);

 private:
  // Multiply a block of the depth.
  void multiply_natively(const Factor& a, const Factor& b, const Matrix<float>& c, bool adds);
  void multiply_widened(const Factor& a, const Factor& b, const Matrix<float>& c, bool adds);

  Scratch<float> memory_;  // each word holds a float, or two neighbours of bfloat16
  Product<float> wide_;
};

extern template class Product<float>;
extern template class Product<double>;

/// A thread that has multiplied bfloat16 calls it before other code of oneDNN's may run in it: lets
/// go of what a CPU's tiles are set up for.
void release_tiles();

/// FLOP/s of Product on all threads of the rank at once, on matrices in their caches: the best of
/// as many measurements of about a millisecond as fit into `seconds`. 0 for an unsupported type.
[[nodiscard]] double product_rate(c10::ScalarType type, double seconds);

}  // namespace dtrain::kernels
