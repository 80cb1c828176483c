#include "dtrain/checkpoint/snapshot.h"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "dtrain/base/check.h"
#include "dtrain/checkpoint/tensor_file.h"

namespace dtrain::checkpoint {
std::vector<store::PieceBytes> bytes_of(const State& pieces) {
  std::vector<store::PieceBytes> result;
  for (const Piece& piece : pieces) {
    DTRAIN_CHECK(piece.tensor.is_contiguous() && piece.tensor.is_cpu(), "piece {}", piece.name);
    const auto* data = static_cast<const std::byte*>(piece.tensor.const_data_ptr());
    result.push_back({.tensor = piece.name,
                      .dtype = dtype_of(piece.tensor.scalar_type()),
                      .shape = piece.global_shape,
                      .box = piece.box,
                      .bytes = {data, piece.tensor.nbytes()}});
  }
  return result;
}

Staging::Staging(const State& pieces)
    : num_bytes_(bytes_in(pieces)),
      memory_(at::empty({num_bytes_}, at::TensorOptions().dtype(at::kByte))) {
  // Large memory is not there before it is written to.
  memory_.fill_(1);
}

std::vector<store::PieceBytes> Staging::take(const State& pieces) {
  DTRAIN_CHECK(bytes_in(pieces) == num_bytes_);
  std::vector<store::PieceBytes> copies = bytes_of(pieces);
  auto* to = static_cast<std::byte*>(memory_.mutable_data_ptr());
  for (store::PieceBytes& piece : copies) {
    std::copy(piece.bytes.begin(), piece.bytes.end(), to);
    piece.bytes = {to, piece.bytes.size()};
    to += piece.bytes.size();
  }
  return copies;
}

}  // namespace dtrain::checkpoint
