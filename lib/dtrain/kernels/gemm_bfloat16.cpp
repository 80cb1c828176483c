#include <ATen/native/CPUBlas.h>

#include <algorithm>
#include <sstream>

#include "dtrain/base/error.h"
#include "dtrain/base/rank_env.h"
#include "dtrain/kernels/gemm.h"

namespace dtrain::kernels {
namespace {

using c10::BFloat16;
using Operand = Matrix<const BFloat16>;

// A block of b of this depth stays in a core's cache while it is multiplied by successive rows.
constexpr std::int64_t kBfloat16DepthBlock = 512;
// Rows of a that are packed at once.
constexpr std::int64_t kRowBlock = 128;
// Columns of b that are packed at once.
constexpr std::int64_t kColumnBlock = 64;
// The depth that is transposed at once: two bfloat16 values per word of the transpose kernel.
constexpr std::int64_t kTransposedDepth = 32;

// Returns the setting that limits oneDNN's instruction set, "ONEDNN_MAX_CPU_ISA=AVX2"; MKL's own
// limits do not affect it.
std::string limit_of_onednn() {
  std::istringstream settings(base::cpu_settings_of_process());
  for (std::string setting; settings >> setting;) {
    if (setting.find("_MAX_CPU_ISA=") != std::string::npos) return setting;
  }
  return {};
}

bool is_native() { return bfloat16_path() != Bfloat16Path::widened; }

// The parts of a product's scratch memory, in words.
struct Workspace {
  float* left;     // kRowBlock packed rows of a
  float* staging;  // intermediate form while packing
  float* right;    // packed b
};

std::int64_t block_words(std::int64_t depth) {
  return std::min(kBfloat16DepthBlock, padded_depth(depth)) / (is_native() ? 2 : 1);
}
std::int64_t left_words(std::int64_t depth) { return kRowBlock * block_words(depth); }
std::int64_t staging_words(std::int64_t depth) {
  if (!is_native()) return 0;
  return std::max(kColumnBlock * block_words(depth), kRowBlock * kTransposedDepth / 2);
}
std::int64_t words_for(const OperandSize& largest) {
  return left_words(largest.depth) + staging_words(largest.depth) +
         block_words(largest.depth) * largest.columns;
}
Workspace workspace_in(const Scratch<float>& memory, std::int64_t depth) {
  float* const staging = memory.data() + left_words(depth);
  return {.left = memory.data(), .staging = staging, .right = staging + staging_words(depth)};
}

// Two adjacent values of a row form a 32-bit word, which is copied like a float.
const float* as_words(const BFloat16* data) { return reinterpret_cast<const float*>(data); }
BFloat16* as_bfloat16(float* data) { return reinterpret_cast<BFloat16*>(data); }
const unsigned short* as_bits(const BFloat16* data) {
  return reinterpret_cast<const unsigned short*>(data);
}

const GemmKernels<float>& word_kernels() {
  return choose(kFloatGemmBaseline, kFloatGemmAvx2, kFloatGemmAvx512);
}

// Copies rows and pads them with zeros to `depth` values.
void pad_rows(const Operand& from, std::int64_t depth, BFloat16* to) {
  for (std::int64_t i = 0; i < from.rows; ++i, to += depth) {
    std::copy_n(from.row(i), from.columns, to);
    std::fill(to + from.columns, to + depth, BFloat16(0));
  }
}

// Interleaves pairs of contiguous rows into the VNNI layout that the CPU's instructions read: word
// (k / 2, n) holds (k, n) and (k + 1, n). Pads with rows of zeros up to `depth`.
void interleave_rows(const Operand& from, std::int64_t depth, float* to) {
  const std::int64_t pairs = from.rows / 2;
  auto* const out = reinterpret_cast<unsigned*>(to);
  for (std::int64_t pair = 0; pair < pairs; ++pair) {
    word_kernels().interleave(as_bits(from.row(2 * pair)), as_bits(from.row(2 * pair + 1)),
                              from.columns, out + pair * from.columns);
  }
  if (from.rows % 2 != 0) {
    std::copy_n(as_bits(from.row(from.rows - 1)), from.columns, out + pairs * from.columns);
  }
  std::fill(out + (from.rows + 1) / 2 * from.columns, out + depth / 2 * from.columns, 0U);
}

bool has_whole_words(const Operand& transposed) {
  return transposed.rows % 2 == 0 && transposed.column_stride % 2 == 0 &&
         reinterpret_cast<std::uintptr_t>(transposed.data) % sizeof(float) == 0;
}

// The same for a column-major matrix.
void interleave_columns(const Operand& from, std::int64_t depth, float* staging, float* to) {
  const auto transpose = word_kernels().transpose;
  if (has_whole_words(from)) {
    transpose(as_words(from.data), from.column_stride / 2, from.columns, from.rows / 2, to,
              from.columns);
    std::fill(to + from.rows / 2 * from.columns, to + depth / 2 * from.columns, 0.0F);
    return;
  }
  for (std::int64_t n = 0; n < from.columns; n += kColumnBlock) {
    const Operand block = from.column_block(n, std::min(kColumnBlock, from.columns - n));
    pad_rows(block.transposed(), depth, as_bfloat16(staging));
    transpose(staging, depth / 2, block.columns, depth / 2, to + n, from.columns);
  }
}

// Packs column-major a into contiguous rows of `depth` values: interleaves pairs of columns, then
// transposes them as words.
void transpose_pairs(const Operand& a, std::int64_t depth, float* staging, float* to) {
  constexpr std::int64_t kPairs = kTransposedDepth / 2;
  for (std::int64_t k = 0; k < depth; k += kTransposedDepth) {
    const Operand columns = a.column_block(k, std::min(kTransposedDepth, a.columns - k));
    interleave_rows(columns.transposed(), kTransposedDepth, staging);
    word_kernels().transpose(staging, a.rows, kPairs, a.rows, to + k / 2, depth / 2);
  }
}

// Widens the elements to float, keeping their memory order.
Matrix<const float> widen(const Operand& from, float* to) {
  if (from.column_stride != 1) return widen(from.transposed(), to).transposed();
  for (std::int64_t i = 0; i < from.rows; ++i) {
    const BFloat16* const row = from.row(i);
    for (std::int64_t j = 0; j < from.columns; ++j) {
      to[i * from.columns + j] = static_cast<float>(row[j]);
    }
  }
  return {to, from.rows, from.columns};
}

}  // namespace

std::string why_bfloat16_is_widened() {
  if (__builtin_cpu_supports("avx512bf16") == 0) {
    return "this CPU has no bfloat16 instructions (AMX or AVX512-BF16)";
  }
  std::string limit = limit_of_onednn();
  if (limit.empty() && instruction_set() < InstructionSet::avx512) limit = "ATEN_CPU_CAPABILITY";
  return limit.empty() ? "" : limit + " disables the CPU's bfloat16 instructions";
}

Bfloat16Path bfloat16_path() {
  static const Bfloat16Path path = [] {
    if (!why_bfloat16_is_widened().empty()) return Bfloat16Path::widened;
    // LibTorch packs bfloat16 if oneDNN uses AMX, which it has also requested from the kernel.
    return at::native::cpublas::could_pack(at::kBFloat16) ? Bfloat16Path::amx
                                                          : Bfloat16Path::avx512_bf16;
  }();
  return path;
}

void release_tiles() {
  if (is_native()) at::native::cpublas::brgemm_release();
}

void Gemm<BFloat16>::reserve(const OperandSize& largest) {
  memory_.require(words_for(largest));
  if (!is_native()) wide_.reserve(largest);
}

std::int64_t Gemm<BFloat16>::bytes(const OperandSize& largest) {
  const std::int64_t words = words_for(largest) * static_cast<std::int64_t>(sizeof(float));
  return words + (is_native() ? 0 : Gemm<float>::bytes(largest));
}

void Gemm<BFloat16>::multiply(const Operand& a, const Operand& b, const Matrix<float>& c,
                              bool adds) {
  DTRAIN_CHECK(a.columns == b.rows && a.rows == c.rows && b.columns == c.columns);
  DTRAIN_CHECK(a.column_stride == 1 || a.row_stride == 1);
  DTRAIN_CHECK(c.column_stride == 1 && (b.column_stride == 1 || b.row_stride == 1));
  reserve({.depth = b.rows, .columns = b.columns});
  for (std::int64_t k = 0; k < b.rows; k += kBfloat16DepthBlock) {
    const std::int64_t depth = std::min(kBfloat16DepthBlock, b.rows - k);
    const Operand left = a.column_block(k, depth);
    const Operand right = b.row_block(k, depth);
    if (is_native()) {
      multiply_natively(left, right, c, adds || k > 0);
    } else {
      multiply_widened(left, right, c, adds || k > 0);
    }
  }
}

void Gemm<BFloat16>::multiply_natively(const Operand& a, const Operand& b, const Matrix<float>& c,
                                       bool adds) {
  const std::int64_t depth = padded_depth(b.rows);
  const Workspace workspace = workspace_in(memory_, depth);
  if (b.column_stride == 1) {
    interleave_rows(b, depth, workspace.right);
  } else {
    interleave_columns(b, depth, workspace.staging, workspace.right);
  }
  const auto multiply_rows = [&](const BFloat16* left, std::int64_t stride,
                                 const Matrix<float>& out) {
    at::native::cpublas::brgemm(out.rows, out.columns, depth, stride, out.columns, out.row_stride,
                                adds, left, as_bfloat16(workspace.right), out.data,
                                /*is_vnni=*/true);
  };
  if (a.column_stride == 1 && a.columns == depth) return multiply_rows(a.data, a.row_stride, c);
  for (std::int64_t row = 0; row < c.rows; row += kRowBlock) {
    const Operand rows = a.row_block(row, std::min(kRowBlock, c.rows - row));
    if (a.column_stride == 1) {
      pad_rows(rows, depth, as_bfloat16(workspace.left));
    } else {
      transpose_pairs(rows, depth, workspace.staging, workspace.left);
    }
    multiply_rows(as_bfloat16(workspace.left), depth, c.row_block(row, rows.rows));
  }
}

void Gemm<BFloat16>::multiply_widened(const Operand& a, const Operand& b, const Matrix<float>& c,
                                      bool adds) {
  const Workspace workspace = workspace_in(memory_, b.rows);
  const Matrix<const float> right = widen(b, workspace.right);
  for (std::int64_t row = 0; row < c.rows; row += kRowBlock) {
    const std::int64_t rows = std::min(kRowBlock, c.rows - row);
    const Matrix<const float> left = widen(a.row_block(row, rows), workspace.left);
    wide_.multiply(left, right, c.row_block(row, rows), adds);
  }
}

}  // namespace dtrain::kernels
