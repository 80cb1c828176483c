// The bytes of a tensor, whole or cut into one part per rank. Private to comm.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "dtrain/base/check.h"

namespace dtrain::comm {

[[nodiscard]] inline std::byte* bytes_of(const at::Tensor& tensor) {
  return static_cast<std::byte*>(tensor.data_ptr());
}

[[nodiscard]] inline std::int64_t size_in_bytes(const at::Tensor& tensor) {
  return static_cast<std::int64_t>(tensor.nbytes());
}

/// Elements by rank; of groups of up to 16 ranks without memory of its own.
using PartCounts = c10::SmallVector<std::int64_t, 17>;

/// A contiguous tensor cut into one part per rank of a group, in the order of ranks.
class PartedTensor {
 public:
  /// counts: elements of each rank's part; they add up to the tensor's.
  PartedTensor(at::Tensor tensor, std::span<const std::int64_t> counts)
      : tensor_(std::move(tensor)) {
    begins_.reserve(counts.size() + 1);
    for (const std::int64_t count : counts) {
      DTRAIN_CHECK(count >= 0, "a part of {} elements", count);
      begins_.push_back(begins_.back() + count);
    }
    DTRAIN_CHECK(begins_.back() == tensor_.numel(), "parts of {} elements in a tensor of {}",
                 begins_.back(), tensor_.numel());
  }

  [[nodiscard]] const at::Tensor& tensor() const { return tensor_; }
  [[nodiscard]] std::int64_t ranks() const { return static_cast<std::int64_t>(begins_.size()) - 1; }
  /// Where each part begins and the last one ends. Units: elements.
  [[nodiscard]] std::span<const std::int64_t> begins() const {
    return {begins_.data(), begins_.size()};
  }
  [[nodiscard]] std::int64_t count(std::int64_t rank) const {
    return begins_[static_cast<std::size_t>(rank) + 1] - begins_[static_cast<std::size_t>(rank)];
  }
  [[nodiscard]] std::span<std::byte> part(std::int64_t rank) const {
    const auto size = static_cast<std::int64_t>(tensor_.element_size());
    return {bytes_of(tensor_) + begins_[static_cast<std::size_t>(rank)] * size,
            static_cast<std::size_t>(count(rank) * size)};
  }

 private:
  at::Tensor tensor_;
  PartCounts begins_{0};
};

}  // namespace dtrain::comm
