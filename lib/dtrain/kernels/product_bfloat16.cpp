#include <ATen/native/CPUBlas.h>

#include <algorithm>
#include <sstream>

#include "dtrain/base/error.h"
#include "dtrain/base/rank_env.h"
#include "dtrain/kernels/product.h"

namespace dtrain::kernels {
namespace {

using c10::BFloat16;
using Factor = Matrix<const BFloat16>;

// A block of b of this depth stays in a core's cache while rows pass by it.
constexpr std::int64_t kBfloat16DepthBlock = 512;
// Rows of a that are brought into another form at once.
constexpr std::int64_t kRowBlock = 128;
// The same of columns of b, on a way to that form.
constexpr std::int64_t kColumnBlock = 64;
// The depth that is turned at once: of bfloat16, as many words as the kernel's square has.
constexpr std::int64_t kTurnedDepth = 32;

// The setting that limits oneDNN's instructions, "ONEDNN_MAX_CPU_ISA=AVX2"; those that limit MKL's
// do not concern it.
std::string limit_of_onednn() {
  std::istringstream settings(base::cpu_settings_of_process());
  for (std::string setting; settings >> setting;) {
    if (setting.find("_MAX_CPU_ISA=") != std::string::npos) return setting;
  }
  return {};
}

bool is_native() { return bfloat16_path() != Bfloat16Path::widened; }

// Where the memory of a product lies, in words.
struct Room {
  float* left;     // a, kRowBlock rows of neighbours
  float* staging;  // what is on its way to left or right
  float* right;    // b
};

std::int64_t block_words(std::int64_t depth) {
  return std::min(kBfloat16DepthBlock, padded_depth(depth)) / (is_native() ? 2 : 1);
}
std::int64_t left_words(std::int64_t depth) { return kRowBlock * block_words(depth); }
std::int64_t staging_words(std::int64_t depth) {
  if (!is_native()) return 0;
  return std::max(kColumnBlock * block_words(depth), kRowBlock * kTurnedDepth / 2);
}
std::int64_t words_for(const FactorSize& most) {
  return left_words(most.depth) + staging_words(most.depth) +
         block_words(most.depth) * most.columns;
}
Room room_in(const Scratch<float>& memory, std::int64_t depth) {
  float* const staging = memory.data() + left_words(depth);
  return {.left = memory.data(), .staging = staging, .right = staging + staging_words(depth)};
}

// Two neighbours of a row are a word of 32 bits, which is copied as a float is.
const float* words(const BFloat16* data) { return reinterpret_cast<const float*>(data); }
BFloat16* numbers(float* data) { return reinterpret_cast<BFloat16*>(data); }
const unsigned short* halves(const BFloat16* data) {
  return reinterpret_cast<const unsigned short*>(data);
}

const ProductKernels<float>& word_kernels() {
  return choose(kFloatProductBaseline, kFloatProductAvx2, kFloatProductAvx512);
}

// Rows of neighbours, filled up with zeros to `depth` numbers.
void pad_rows(const Factor& from, std::int64_t depth, BFloat16* to) {
  for (std::int64_t i = 0; i < from.rows; ++i, to += depth) {
    std::copy_n(from.row(i), from.columns, to);
    std::fill(to + from.columns, to + depth, BFloat16(0));
  }
}

// Pairs of rows, interleaved, as the CPU's instructions read them: word (k / 2, n) holds (k, n) and
// (k + 1, n). Rows of zeros follow, up to `depth`. Elements of a row are neighbours.
void interleave_rows(const Factor& from, std::int64_t depth, float* to) {
  const std::int64_t pairs = from.rows / 2;
  auto* const out = reinterpret_cast<unsigned*>(to);
  for (std::int64_t pair = 0; pair < pairs; ++pair) {
    word_kernels().interleave(halves(from.row(2 * pair)), halves(from.row(2 * pair + 1)),
                              from.columns, out + pair * from.columns);
  }
  if (from.rows % 2 != 0) {
    std::copy_n(halves(from.row(from.rows - 1)), from.columns, out + pairs * from.columns);
  }
  std::fill(out + (from.rows + 1) / 2 * from.columns, out + depth / 2 * from.columns, 0U);
}

bool has_whole_words(const Factor& transposed) {
  return transposed.rows % 2 == 0 && transposed.column_stride % 2 == 0 &&
         reinterpret_cast<std::uintptr_t>(transposed.data) % sizeof(float) == 0;
}

// The same of a matrix that has the elements of a column side by side.
void interleave_columns(const Factor& from, std::int64_t depth, float* staging, float* to) {
  const auto transpose = word_kernels().transpose;
  if (has_whole_words(from)) {
    transpose(words(from.data), from.column_stride / 2, from.columns, from.rows / 2, to,
              from.columns);
    std::fill(to + from.rows / 2 * from.columns, to + depth / 2 * from.columns, 0.0F);
    return;
  }
  for (std::int64_t n = 0; n < from.columns; n += kColumnBlock) {
    const Factor block = from.column_block(n, std::min(kColumnBlock, from.columns - n));
    pad_rows(block.transposed(), depth, numbers(staging));
    transpose(staging, depth / 2, block.columns, depth / 2, to + n, from.columns);
  }
}

// Brings a, which has the elements of a column side by side, into rows of `depth` neighbours: pairs
// of its columns are interleaved and then transposed as words.
void turn(const Factor& a, std::int64_t depth, float* staging, float* to) {
  constexpr std::int64_t kPairs = kTurnedDepth / 2;
  for (std::int64_t k = 0; k < depth; k += kTurnedDepth) {
    const Factor columns = a.column_block(k, std::min(kTurnedDepth, a.columns - k));
    interleave_rows(columns.transposed(), kTurnedDepth, staging);
    word_kernels().transpose(staging, a.rows, kPairs, a.rows, to + k / 2, depth / 2);
  }
}

// The elements as floats, in the order in which they lie in memory.
Matrix<const float> widen(const Factor& from, float* to) {
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
    return "this CPU has no instructions that multiply it (AMX or AVX512-BF16)";
  }
  std::string limit = limit_of_onednn();
  if (limit.empty() && instruction_set() < InstructionSet::avx512) limit = "ATEN_CPU_CAPABILITY";
  return limit.empty() ? "" : limit + " keeps it from the CPU's instructions that multiply it";
}

Bfloat16Path bfloat16_path() {
  static const Bfloat16Path path = [] {
    if (!why_bfloat16_is_widened().empty()) return Bfloat16Path::widened;
    // LibTorch packs bfloat16 where oneDNN uses AMX, for which it has asked the system too.
    return at::native::cpublas::could_pack(at::kBFloat16) ? Bfloat16Path::amx
                                                          : Bfloat16Path::avx512_bf16;
  }();
  return path;
}

void release_tiles() {
  if (is_native()) at::native::cpublas::brgemm_release();
}

void Product<BFloat16>::reserve(const FactorSize& most) {
  memory_.require(words_for(most));
  if (!is_native()) wide_.reserve(most);
}

std::int64_t Product<BFloat16>::bytes(const FactorSize& most) {
  const std::int64_t words = words_for(most) * static_cast<std::int64_t>(sizeof(float));
  return words + (is_native() ? 0 : Product<float>::bytes(most));
}

void Product<BFloat16>::multiply(const Factor& a, const Factor& b, const Matrix<float>& c,
                                 bool adds) {
  DTRAIN_CHECK(a.columns == b.rows && a.rows == c.rows && b.columns == c.columns);
  DTRAIN_CHECK(a.column_stride == 1 || a.row_stride == 1);
  DTRAIN_CHECK(c.column_stride == 1 && (b.column_stride == 1 || b.row_stride == 1));
  reserve({.depth = b.rows, .columns = b.columns});
  for (std::int64_t k = 0; k < b.rows; k += kBfloat16DepthBlock) {
    const std::int64_t depth = std::min(kBfloat16DepthBlock, b.rows - k);
    const Factor left = a.column_block(k, depth);
    const Factor right = b.row_block(k, depth);
    if (is_native()) {
      multiply_natively(left, right, c, adds || k > 0);
    } else {
      multiply_widened(left, right, c, adds || k > 0);
    }
  }
}

void Product<BFloat16>::multiply_natively(const Factor& a, const Factor& b, const Matrix<float>& c,
                                          bool adds) {
  const std::int64_t depth = padded_depth(b.rows);
  const Room room = room_in(memory_, depth);
  if (b.column_stride == 1) {
    interleave_rows(b, depth, room.right);
  } else {
    interleave_columns(b, depth, room.staging, room.right);
  }
  const auto multiply_rows = [&](const BFloat16* left, std::int64_t stride,
                                 const Matrix<float>& out) {
    at::native::cpublas::brgemm(out.rows, out.columns, depth, stride, out.columns, out.row_stride,
                                adds, left, numbers(room.right), out.data, /*is_vnni=*/true);
  };
  if (a.column_stride == 1 && a.columns == depth) return multiply_rows(a.data, a.row_stride, c);
  for (std::int64_t row = 0; row < c.rows; row += kRowBlock) {
    const Factor rows = a.row_block(row, std::min(kRowBlock, c.rows - row));
    if (a.column_stride == 1) {
      pad_rows(rows, depth, numbers(room.left));
    } else {
      turn(rows, depth, room.staging, room.left);
    }
    multiply_rows(numbers(room.left), depth, c.row_block(row, rows.rows));
  }
}

void Product<BFloat16>::multiply_widened(const Factor& a, const Factor& b, const Matrix<float>& c,
                                         bool adds) {
  const Room room = room_in(memory_, b.rows);
  const Matrix<const float> right = widen(b, room.right);
  for (std::int64_t row = 0; row < c.rows; row += kRowBlock) {
    const std::int64_t rows = std::min(kRowBlock, c.rows - row);
    const Matrix<const float> left = widen(a.row_block(row, rows), room.left);
    wide_.multiply(left, right, c.row_block(row, rows), adds);
  }
}

}  // namespace dtrain::kernels
