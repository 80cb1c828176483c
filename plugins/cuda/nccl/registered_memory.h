// GPU memory registered with NCCL, which gathers into and reduces from it in place.
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

/// Memory segments allocated by NCCL, and the communicators they are registered with.
///
/// Threads: any.
class Segments {
 public:
  /// Called by the caching allocator; returns null if out of memory.
  [[nodiscard]] void* allocate(std::size_t bytes) noexcept;
  void free(void* base) noexcept;

  /// Registers the segment that contains `address` with the communicator, once; no-op for memory
  /// from elsewhere.
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
  std::map<const std::byte*, Segment> segments_;  // by base address
};

/// A pool of LibTorch's caching allocator, so that it is counted and limited like other memory, with
/// segments from NCCL. REQUIRES: ranks that gather or reduce together allocate in the same order, so
/// that their buffers have equal offsets within segments, as NVLink SHARP requires.
///
/// Throws:  c10::OutOfMemoryError.
/// Threads: any.
class RegisteredMemory {
 public:
  explicit RegisteredMemory(c10::Device device);

  /// Allocates (bytes) uint8, zeroed, on the current stream.
  [[nodiscard]] at::Tensor allocate(std::int64_t bytes);
  [[nodiscard]] Segments& segments() { return *segments_; }

 private:
  c10::Device device_;
  std::shared_ptr<Segments> segments_;  // shared with the pool's allocator
  at::cuda::MemPool pool_;
};

}  // namespace dtrain::cuda
