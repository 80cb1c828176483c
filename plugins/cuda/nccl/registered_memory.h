// Memory that NCCL gathers into and reduces from in place.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/cuda/MemPool.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "cuda/nccl/communicator.h"

namespace dtrain::cuda {

/// Segments of memory that NCCL has given, and the communicators that know them.
///
/// Threads: any.
class Segments {
 public:
  /// For the caching allocator: null where there is no room.
  [[nodiscard]] void* allocate(std::size_t bytes) noexcept;
  void free(void* base) noexcept;

  /// Registers the segment that holds `address` with the communicator, once; foreign memory: does
  /// nothing.
  ///
  /// Throws: TransportFailure.
  void register_with(const std::shared_ptr<Communicator>& communicator, const void* address,
                     const base::Deadline& deadline);

 private:
  struct Segment {
    std::size_t bytes = 0;
    std::vector<std::weak_ptr<Communicator>> users;
  };

  std::mutex mutex_;
  std::map<const std::byte*, Segment> segments_;  // by their first byte
};

/// A pool of LibTorch's caching allocator, which counts it and caps it as other memory. Its
/// segments come from NCCL. Ranks that gather or reduce together allocate in the same order, so
/// that their buffers lie at equal places of their segments, as NCCL's switches want.
///
/// Throws:  c10::OutOfMemoryError.
/// Threads: any.
class RegisteredMemory {
 public:
  explicit RegisteredMemory(c10::Device device);

  /// (bytes) uint8, zeroed, of the current stream.
  [[nodiscard]] at::Tensor allocate(std::int64_t bytes);
  [[nodiscard]] Segments& segments() { return *segments_; }

 private:
  c10::Device device_;
  std::shared_ptr<Segments> segments_;  // the pool's allocator keeps it, too
  at::cuda::MemPool pool_;
};

}  // namespace dtrain::cuda
