// Memory that a thread works in.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <cstdint>

namespace dtrain::kernels {

/// Memory of one thread, which LibTorch counts; without initial values.
template <typename T>
class Scratch {
 public:
  /// Makes room for `count` elements; where there is room already, nothing changes, else what was
  /// there is lost.
  void require(std::int64_t count) {
    if (count <= count_) return;
    count_ = 0;
    memory_.reset();  // so that both never exist at once
    memory_ = at::empty({count * static_cast<std::int64_t>(sizeof(T))}, at::kByte);
    count_ = count;
  }
  [[nodiscard]] T* data() const { return static_cast<T*>(memory_.mutable_data_ptr()); }

 private:
  at::Tensor memory_;
  std::int64_t count_ = 0;
};

}  // namespace dtrain::kernels
