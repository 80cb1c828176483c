// Pinned memory of the host as the place of arenas whose values a device needs once per step.
#pragma once

#include <c10/core/Stream.h>

#include <cstdint>

#include "dtrain/param/offload_memory.h"

namespace dtrain::param {

/// Values travel on a stream of their own, in the order of the calls. The host may read and write
/// the memory once it has waited for the stream that has called settle().
///
/// Threads: one.
class PinnedMemory final : public OffloadMemory {
 public:
  explicit PinnedMemory(c10::Device device);

  [[nodiscard]] c10::Device device() const override { return copies_.device(); }
  [[nodiscard]] at::Tensor allocate(std::int64_t bytes) override;
  [[nodiscard]] Fetched fetch(const at::Tensor& part) override;
  void store(const at::Tensor& values, const at::Tensor& part) override;
  void release(const at::Tensor& part) override;
  void settle() override;

 private:
  [[nodiscard]] c10::Stream callers_stream() const;

  c10::Stream copies_;
};

}  // namespace dtrain::param
