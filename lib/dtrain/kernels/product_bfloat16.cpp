#include <ATen/native/CPUBlas.h>

#include <algorithm>

#include "dtrain/base/check.h"
#include "dtrain/base/rank_env.h"
#include "dtrain/kernels/product.h"

namespace dtrain::kernels {
namespace {

using c10::BFloat16;

std::size_t size_of(std::int64_t rows, std::int64_t columns) {
  return static_cast<std::size_t>(rows * columns);
}

// Elements of a matrix, row by row.
template <typename To>
void copy_rows(const Matrix<const BFloat16>& from, std::vector<To>& to) {
  to.resize(size_of(from.rows, from.columns));
  To* out = to.data();
  for (std::int64_t i = 0; i < from.rows; ++i) {
    const BFloat16* row = from.data + i * from.row_stride;
    for (std::int64_t j = 0; j < from.columns; ++j) {
      *out++ = static_cast<To>(row[j * from.column_stride]);
    }
  }
}

// Two neighbours of a row are a word of 32 bits, which is copied as a float is.
const float* words(const BFloat16* data) { return reinterpret_cast<const float*>(data); }
float* words(BFloat16* data) { return reinterpret_cast<float*>(data); }
const unsigned short* halves(const BFloat16* data) {
  return reinterpret_cast<const unsigned short*>(data);
}

const ProductKernels<float>& word_kernels() {
  return choose(kFloatProductBaseline, kFloatProductAvx2, kFloatProductAvx512);
}

// Pairs of rows, interleaved, as the CPU's instructions read them: element (k, n) lies at
// (k / 2, 2 n + k % 2). The last row of an odd number has zeros for a partner.
void interleave_rows(const Matrix<const BFloat16>& from, std::vector<BFloat16>& to) {
  const std::int64_t pairs = from.rows / 2;
  to.resize(size_of(2 * ((from.rows + 1) / 2), from.columns));
  if (from.column_stride == 1) {
    for (std::int64_t pair = 0; pair < pairs; ++pair) {
      const BFloat16* even = from.data + 2 * pair * from.row_stride;
      word_kernels().interleave(halves(even), halves(even + from.row_stride), from.columns,
                                reinterpret_cast<unsigned*>(to.data() + 2 * pair * from.columns));
    }
  } else if (from.column_stride % 2 == 0) {
    word_kernels().transpose(words(from.data), from.column_stride / 2, from.columns, pairs,
                             words(to.data()), from.columns);
  } else {
    for (std::int64_t k = 0; k < 2 * pairs; ++k) {
      for (std::int64_t n = 0; n < from.columns; ++n) {
        to[size_of(k / 2 * 2, from.columns) + size_of(2, n) + size_of(k % 2, 1)] =
            from.data[k + n * from.column_stride];
      }
    }
  }
  if (from.rows % 2 == 0) return;
  for (std::int64_t n = 0; n < from.columns; ++n) {
    BFloat16* out = to.data() + 2 * pairs * from.columns + 2 * n;
    out[0] = from.data[2 * pairs * from.row_stride + n * from.column_stride];
    out[1] = BFloat16(0);
  }
}

}  // namespace

bool multiplies_bfloat16() {
  // A CPU with AMX has AVX512-BF16 too; oneDNN takes whichever is faster. One that is told to use
  // less has no such kernels.
  static const bool can = instruction_set() == InstructionSet::avx512 &&
                          __builtin_cpu_supports("avx512bf16") != 0 &&
                          base::cpu_settings_of_process().empty();
  return can;
}

void release_tiles() {
  if (multiplies_bfloat16()) at::native::cpublas::brgemm_release();
}

void Product<BFloat16>::multiply(const Factor& a, const Factor& b, const Matrix<float>& c,
                                 bool adds) {
  DTRAIN_CHECK(a.columns == b.rows && a.rows == c.rows && b.columns == c.columns);
  if (multiplies_bfloat16()) return multiply_natively(a, b, c, adds);
  multiply_widened(a, b, c, adds);
}

void Product<BFloat16>::multiply_natively(const Factor& a, const Factor& b, const Matrix<float>& c,
                                          bool adds) {
  Factor left = a;
  if (a.column_stride != 1) {
    turn(a);
    left = {left_.data(), a.rows, a.columns};
  }
  interleave_rows(b, right_);
  at::native::cpublas::brgemm(c.rows, c.columns, a.columns, left.row_stride, c.columns,
                              c.row_stride, adds, left.data, right_.data(), c.data,
                              /*is_vnni=*/true);
}

// Brings a, whose columns lie side by side, into rows of neighbours: pairs of its columns are
// interleaved and then transposed as words.
void Product<BFloat16>::turn(const Factor& a) {
  if (a.columns % 2 != 0) return copy_rows(a, left_);
  interleave_rows(a.transposed(), right_);
  left_.resize(size_of(a.rows, a.columns));
  word_kernels().transpose(words(right_.data()), a.rows, a.columns / 2, a.rows, words(left_.data()),
                           a.columns / 2);
}

void Product<BFloat16>::multiply_widened(const Factor& a, const Factor& b, const Matrix<float>& c,
                                         bool adds) {
  copy_rows(a, wide_left_);
  copy_rows(b, wide_right_);
  const Matrix<const float> left{wide_left_.data(), a.rows, a.columns};
  const Matrix<const float> right{wide_right_.data(), b.rows, b.columns};
  if (adds) {
    wide_.add(left, right, c);
  } else {
    wide_.write(left, right, c);
  }
}

}  // namespace dtrain::kernels
