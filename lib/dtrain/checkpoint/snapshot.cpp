#include "dtrain/checkpoint/snapshot.h"

#include <ATen/ops/empty.h>

#include "dtrain/base/error.h"
#include "dtrain/checkpoint/tensor_file.h"
#include "dtrain/device/synchronize.h"

namespace dtrain::checkpoint {

namespace {

// The piece, whose values lie at `data`.
store::PieceBytes bytes_at(const void* data, const Piece& piece) {
  return {.tensor = piece.name,
          .dtype = dtype_of(piece.tensor.scalar_type()),
          .shape = piece.global_shape,
          .box = piece.box,
          .bytes = {static_cast<const std::byte*>(data), piece.tensor.nbytes()}};
}

// Where most pieces lie; some numbers are the host's.
c10::Device device_of(const State& pieces) {
  for (const Piece& piece : pieces) {
    if (!piece.tensor.is_cpu()) return piece.tensor.device();
  }
  return c10::kCPU;
}

}  // namespace

bool are_on_host(const State& pieces) { return device_of(pieces).is_cpu(); }

std::vector<store::PieceBytes> bytes_of(const State& pieces) {
  std::vector<store::PieceBytes> result;
  for (const Piece& piece : pieces) {
    DTRAIN_CHECK(piece.tensor.is_contiguous() && piece.tensor.is_cpu(), "piece {}", piece.name);
    result.push_back(bytes_at(piece.tensor.const_data_ptr(), piece));
  }
  return result;
}

Staging::Staging(const State& pieces)
    : num_bytes_(bytes_in(pieces)),
      device_(device_of(pieces)),
      memory_(at::empty({num_bytes_},
                        at::TensorOptions().dtype(at::kByte).pinned_memory(!device_.is_cpu()))) {
  // Large memory is not there before it is written to.
  memory_.fill_(1);
}

std::vector<store::PieceBytes> Staging::take(const State& pieces) {
  DTRAIN_CHECK(bytes_in(pieces) == num_bytes_);
  std::vector<store::PieceBytes> copies;
  std::int64_t begin = 0;
  for (const Piece& piece : pieces) {
    const at::Tensor bytes = piece.tensor.flatten().view(at::kByte);
    const at::Tensor copy = memory_.narrow(0, begin, bytes.numel());
    copy.copy_(bytes, /*non_blocking=*/true);
    copies.push_back(bytes_at(copy.const_data_ptr(), piece));
    begin += bytes.numel();
  }
  device::synchronize_stream(device_);
  return copies;
}

}  // namespace dtrain::checkpoint
