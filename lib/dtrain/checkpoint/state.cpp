#include "dtrain/checkpoint/state.h"

#include <ATen/ops/linalg_vector_norm.h>

#include <cmath>
#include <limits>

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
    if (piece.tensor.numel() == 0) continue;
    // The largest magnitude: NaN if any value is.
    const at::Tensor largest =
        at::linalg_vector_norm(piece.tensor, std::numeric_limits<double>::infinity());
    if (!std::isfinite(largest.item<double>())) return piece.name;
  }
  return {};
}

std::int64_t bytes_in(const State& pieces) {
  std::int64_t bytes = 0;
  for (const Piece& piece : pieces) bytes += static_cast<std::int64_t>(piece.tensor.nbytes());
  return bytes;
}

}  // namespace dtrain::checkpoint
