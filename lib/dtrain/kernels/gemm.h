// Single-threaded GEMM for matrices that fit in a core's cache.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/util/BFloat16.h>

#include <cstdint>
#include <string>

#include "dtrain/kernels/instruction_set.h"
#include "dtrain/kernels/internal/gemm_kernels.h"

namespace dtrain::kernels {

/// A non-owning, strided view of a matrix.
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

/// Uninitialized scratch memory of one thread, allocated through LibTorch so that it is counted.
template <typename T>
class Scratch {
 public:
  /// Grows to `count` elements, discarding the contents; no-op if already as large.
  void require(std::int64_t count) {
    if (count <= count_) return;
    count_ = 0;
    memory_.reset();  // frees the old memory before allocating
    memory_ = at::empty({count * static_cast<std::int64_t>(sizeof(T))}, at::kByte);
    count_ = count;
  }
  [[nodiscard]] T* data() const { return static_cast<T*>(memory_.mutable_data_ptr()); }

 private:
  at::Tensor memory_;
  std::int64_t count_ = 0;
};

/// The accumulation type of products of T.
template <typename T>
struct SumOf {
  using Type = T;
};
template <>
struct SumOf<c10::BFloat16> {
  using Type = float;
};

/// The size of the right operand, which determines how much scratch memory a product needs.
struct OperandSize {
  std::int64_t depth = 0;
  std::int64_t columns = 0;
};

/// Multiplies float or double matrices. One stride of each operand must be 1; rows of C must be
/// contiguous.
///
/// Each element of C is summed over the depth in a fixed order, so its bits depend neither on how C
/// is tiled nor on the number of threads.
///
/// Threads: one caller; owns its scratch memory.
template <typename T>
class Gemm {
 public:
  using Sum = typename SumOf<T>::Type;

  /// Uses the kernels of this CPU's instruction set, which affects rounding.
  Gemm() : Gemm(instruction_set()) {}
  /// Uses the kernels of `set`, which the CPU must support. Baseline kernels are slower but round
  /// alike on all CPUs.
  explicit Gemm(InstructionSet set);

  /// Allocates scratch memory for right operands of up to this size, instead of at the first use.
  void reserve(const OperandSize& largest);
  /// Returns how many bytes reserve(largest) allocates.
  [[nodiscard]] static std::int64_t bytes(const OperandSize& largest);

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
  void multiply_margin(PanelOperands<T> operands, const Matrix<T>& c, bool adds);
  // Copies one panel of b into contiguous rows of kPanelColumns.
  [[nodiscard]] const T* pack(const Matrix<const T>& b);

  const GemmKernels<T>& kernels_;
  Scratch<T> packed_;
  Scratch<T> margin_;  // columns of c beyond the last full panel
};

/// Rounds the depth of a bfloat16 product up to a multiple of 32; operands are padded with zeros.
/// AMX multiplies 32 values per row: at other depths oneDNN takes smaller steps, and for odd ones
/// it has no kernel, which LibTorch does not check.
[[nodiscard]] constexpr std::int64_t padded_depth(std::int64_t depth) {
  return (depth + 31) / 32 * 32;
}

/// How this process multiplies bfloat16: with the CPU's bfloat16 instructions through oneDNN, or
/// widened to float32.
enum class Bfloat16Path : std::uint8_t { widened, avx512_bf16, amx };

[[nodiscard]] Bfloat16Path bfloat16_path();

/// Explains why the path is `widened`: what the CPU lacks, or the setting that disables its
/// instructions. Empty for the other paths.
[[nodiscard]] std::string why_bfloat16_is_widened();

/// Multiplies bfloat16 matrices with float32 accumulation: with oneDNN's kernels if the CPU supports
/// bfloat16 (bfloat16_path), otherwise after widening. Equal calls give equal bits: the depth is
/// split into blocks by its size alone, and their sums are added in order.
template <>
class Gemm<c10::BFloat16> {
 public:
  using Sum = float;
  using Operand = Matrix<const c10::BFloat16>;

  void reserve(const OperandSize& largest);
  [[nodiscard]] static std::int64_t bytes(const OperandSize& largest);

  void write(const Operand& a, const Operand& b, const Matrix<float>& c) {
    multiply(a, b, c, false);
  }
  void add(const Operand& a, const Operand& b, const Matrix<float>& c) { multiply(a, b, c, true); }

  void multiply(const Operand& a, const Operand& b, const Matrix<float>& c, bool adds);

 private:
  // Multiply a block of the depth.
  void multiply_natively(const Operand& a, const Operand& b, const Matrix<float>& c, bool adds);
  void multiply_widened(const Operand& a, const Operand& b, const Matrix<float>& c, bool adds);

  Scratch<float> memory_;  // each word holds a float or two adjacent bfloat16 values
  Gemm<float> wide_;
};

extern template class Gemm<float>;
extern template class Gemm<double>;

/// Releases the AMX tile configuration of the calling thread. Call it after bfloat16 products,
/// before other oneDNN code runs in the thread.
void release_tiles();

/// Measures the FLOP/s of Gemm on all threads of the rank at once, with operands in cache: the best
/// of as many measurements of about a millisecond as fit into `seconds`. 0 for an unsupported type.
[[nodiscard]] double gemm_rate(c10::ScalarType type, double seconds);

}  // namespace dtrain::kernels
