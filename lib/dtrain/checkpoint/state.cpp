#include "dtrain/checkpoint/state.h"

#include <ATen/ops/isfinite.h>

#include <bit>
#include <cstdint>
#include <limits>

#include "dtrain/base/error.h"

namespace dtrain::checkpoint {
namespace {

// Rows [n * i / count, n * (i + 1) / count) of the piece.
Piece share_of(const Piece& piece) {
  const auto& [index, count] = piece.replica;
  const std::int64_t rows = piece.box.sizes[0];
  const std::int64_t begin = rows * index / count;
  const std::int64_t end = rows * (index + 1) / count;
  Piece share = piece;
  share.box.offsets[0] += begin;
  share.box.sizes[0] = end - begin;
  share.tensor = piece.tensor.narrow(0, begin, end - begin);
  share.replica = {};
  return share;
}

// A value that is not finite has an exponent of ones, to which one more carries into the sign.
// Compilers make vector instructions of this; LibTorch's norms take ten times as long.
template <typename Bits, typename Float>
bool is_finite(const Float* values, std::int64_t count) {
  static_assert(sizeof(Bits) == sizeof(Float));
  constexpr Bits kOne = Bits{1} << (std::numeric_limits<Float>::digits - 1);
  constexpr Bits kSign = Bits{1} << (std::numeric_limits<Bits>::digits - 1);
  constexpr Bits kExponent = kSign - kOne;
  Bits carried = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    carried |= (std::bit_cast<Bits>(values[i]) & kExponent) + kOne;
  }
  return (carried & kSign) == 0;
}

bool are_finite(const at::Tensor& values) {
  if (!values.is_cpu()) return at::isfinite(values).all().item<bool>();
  return values.scalar_type() == at::kDouble
             ? is_finite<std::uint64_t>(values.const_data_ptr<double>(), values.numel())
             : is_finite<std::uint32_t>(values.const_data_ptr<float>(), values.numel());
}

}  // namespace

State owned_part(const State& state) {
  State owned;
  for (const Piece& piece : state) {
    const bool is_scalar = piece.box.sizes.empty();
    if (piece.replica.count == 1 || (is_scalar && piece.replica.index == 0)) {
      owned.push_back(piece);
    } else if (is_scalar) {
      continue;
    } else if (Piece share = share_of(piece); share.box.sizes[0] > 0) {
      owned.push_back(std::move(share));
    }
  }
  return owned;
}

std::string first_not_finite(const State& pieces) {
  for (const Piece& piece : pieces) {
    const at::Tensor& values = piece.tensor;
    DTRAIN_CHECK(values.is_contiguous(), "piece {}", piece.name);
    if (!are_finite(values)) return piece.name;
  }
  return {};
}

std::int64_t bytes_in(const State& pieces) {
  std::int64_t bytes = 0;
  for (const Piece& piece : pieces) bytes += static_cast<std::int64_t>(piece.tensor.nbytes());
  return bytes;
}

}  // namespace dtrain::checkpoint
