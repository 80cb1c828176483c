#include "dtrain/comm/mapped_memory.h"

#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>
#include <sys/mman.h>

#include "dtrain/base/error.h"

namespace dtrain::comm {

at::Tensor mapped_memory(std::int64_t bytes, const std::function<void(std::int64_t)>& count) {
  const auto options = at::TensorOptions().dtype(at::kByte);
  if (bytes == 0) return at::zeros({0}, options);
  const auto size = static_cast<std::size_t>(bytes);
  void* data = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) {
    base::fail(base::ErrorKind::memory,
               "out of memory: {} bytes for parameters or gradients; use --recompute level, a "
               "smaller --microbatch, more ranks that shard, or a smaller model",
               bytes);
  }
  if (count) count(bytes);
  return at::from_blob(
      data, {bytes},
      [size, count](void* memory) {
        ::munmap(memory, size);
        if (count) count(-static_cast<std::int64_t>(size));
      },
      options);
}

}  // namespace dtrain::comm
