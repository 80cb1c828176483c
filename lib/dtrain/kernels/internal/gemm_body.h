// The inner loops of GEMM. gemm_baseline.cpp, gemm_avx2.cpp and gemm_avx512.cpp each compile them
// for one instruction set, with fused multiply-adds if the set has them.
//
// No standard header is included here: its inline functions, compiled for one instruction set,
// could be linked into code for another.
#pragma once

#include "dtrain/kernels/internal/gemm_kernels.h"

namespace dtrain::kernels {
namespace {

/// A SIMD vector of kBytes bytes with elements of type T.
template <typename T, int kBytes>
struct VectorOf {
  using Type [[gnu::vector_size(kBytes)]] = T;
};
template <typename T>
using Vector = typename VectorOf<T, DTRAIN_VECTOR_BYTES>::Type;
template <typename T>
constexpr int kLanes = DTRAIN_VECTOR_BYTES / static_cast<int>(sizeof(T));

template <typename T>
Vector<T> load(const T* from) {
  Vector<T> vector;
  __builtin_memcpy(&vector, from, sizeof(vector));
  return vector;
}

template <typename T>
void store(Vector<T> vector, T* to) {
  __builtin_memcpy(to, &vector, sizeof(vector));
}

// An integer type of the lane's width, for shuffle masks.
template <long kSize>
struct LaneOf;
template <>
struct LaneOf<4> {
  using Type = int;
};
template <>
struct LaneOf<8> {
  using Type = long;
};

constexpr int kTileBytes = DTRAIN_TILE_BYTES;  // per row of a tile
constexpr int kTileRows = DTRAIN_TILE_ROWS;

// Computes a tile of C, `kRows` rows of kTileBytes, with all sums in registers.
template <typename T, int kRows>
void multiply_tile(const PanelOperands<T>& operands, T* c, long c_row, bool adds) {
  constexpr int kVectors = kTileBytes / DTRAIN_VECTOR_BYTES;
  Vector<T> sums[kRows][kVectors] = {};
  const T* a = operands.a;
  const T* b = operands.b;
  for (long k = 0; k < operands.depth; ++k, a += operands.a_column, b += operands.b_row) {
    Vector<T> right[kVectors];
    for (int j = 0; j < kVectors; ++j) right[j] = load(b + j * kLanes<T>);
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) {
      const T left = a[i * operands.a_row];
      for (int j = 0; j < kVectors; ++j) sums[i][j] += left * right[j];
    }
  }
  for (int i = 0; i < kRows; ++i) {
    for (int j = 0; j < kVectors; ++j) {
      T* out = c + i * c_row + j * kLanes<T>;
      store<T>(adds ? load(out) + sums[i][j] : sums[i][j], out);
    }
  }
}

// Multiplies as many full tiles of `kRows` rows as fit, and advances past them.
template <typename T, int kRows>
void multiply_rows(PanelOperands<T>& operands, long& rows, T*& c, long c_row, bool adds) {
  for (; rows >= kRows; rows -= kRows) {
    multiply_tile<T, kRows>(operands, c, c_row, adds);
    operands.a += kRows * operands.a_row;
    c += kRows * c_row;
  }
}

template <typename T>
void multiply_panel(const PanelOperands<T>& operands, long rows, T* c, long c_row, bool adds) {
  constexpr int kTileColumns = kTileBytes / static_cast<int>(sizeof(T));
  for (long column = 0; column < kPanelColumns<T>; column += kTileColumns) {
    PanelOperands<T> rest = operands;
    rest.b += column;
    long rows_left = rows;
    T* out = c + column;
    multiply_rows<T, kTileRows>(rest, rows_left, out, c_row, adds);
    multiply_rows<T, 2>(rest, rows_left, out, c_row, adds);
    multiply_rows<T, 1>(rest, rows_left, out, c_row, adds);
  }
}

// Interleaves the first (or second) halves of two vectors: a0 b0 a1 b1 ...
template <typename T>
Vector<T> interleave(Vector<T> a, Vector<T> b, bool is_second) {
  typename VectorOf<typename LaneOf<sizeof(T)>::Type, DTRAIN_VECTOR_BYTES>::Type first{};
  for (int lane = 0; lane < kLanes<T>; ++lane) first[lane] = lane / 2 + lane % 2 * kLanes<T>;
  return __builtin_shuffle(a, b, is_second ? first + kLanes<T> / 2 : first);
}

// Transposes a square of kLanes rows: log2(kLanes) rounds that interleave each row with the one
// kLanes / 2 below it.
template <typename T>
void transpose_square(const T* from, long from_row, T* to, long to_row) {
  constexpr int kRows = kLanes<T>;
  Vector<T> rows[kRows];
  for (int i = 0; i < kRows; ++i) rows[i] = load(from + i * from_row);
#pragma GCC unroll 4
  for (int stage = 1; stage < kRows; stage *= 2) {
    Vector<T> mixed[kRows];
#pragma GCC unroll 8
    for (int i = 0; i < kRows / 2; ++i) {
      mixed[2 * i] = interleave<T>(rows[i], rows[i + kRows / 2], false);
      mixed[2 * i + 1] = interleave<T>(rows[i], rows[i + kRows / 2], true);
    }
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) rows[i] = mixed[i];
  }
  for (int i = 0; i < kRows; ++i) store<T>(rows[i], to + i * to_row);
}

template <typename T>
void transpose(const T* from, long from_row, long columns, long depth, T* to, long to_row) {
  constexpr long kSide = kLanes<T>;
  const long square_columns = columns / kSide * kSide;
  const long square_depth = depth / kSide * kSide;
  for (long n = 0; n < square_columns; n += kSide) {
    for (long k = 0; k < square_depth; k += kSide) {
      transpose_square(from + n * from_row + k, from_row, to + k * to_row + n, to_row);
    }
  }
  for (long k = 0; k < depth; ++k) {
    for (long n = k < square_depth ? square_columns : 0; n < columns; ++n) {
      to[k * to_row + n] = from[n * from_row + k];
    }
  }
}

inline void interleave(const unsigned short* __restrict even, const unsigned short* __restrict odd,
                       long count, unsigned* __restrict out) {
  for (long n = 0; n < count; ++n) out[n] = even[n] | static_cast<unsigned>(odd[n]) << 16;
}

template <typename T>
constexpr GemmKernels<T> kKernels{
    .multiply = multiply_panel<T>, .interleave = interleave, .transpose = transpose<T>};

}  // namespace
}  // namespace dtrain::kernels
