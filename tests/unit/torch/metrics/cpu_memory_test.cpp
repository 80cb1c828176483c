#include "dtrain/metrics/cpu_memory.h"

#include <ATen/ATen.h>
#include <c10/core/CPUAllocator.h>

#include <catch2/catch.hpp>
#include <thread>

namespace dtrain::metrics {
namespace {

TEST_CASE("Tensor memory is counted to the byte, and the peak stays") {
  install_counting_allocator();
  const MemoryUse before = memory_use();
  // Beyond what any test before this one has used.
  const std::int64_t large = before.peak - before.current + (1 << 20);
  {
    const at::Tensor a = at::empty({1000}, at::kFloat);
    CHECK(memory_use().current - before.current == 4000);
    {
      const at::Tensor b = at::zeros({large}, at::kByte);
      CHECK(memory_use().current - before.current == 4000 + large);
      const at::Tensor view = b.narrow(0, 1, 1);  // shares
      CHECK(memory_use().current - before.current == 4000 + large);
    }
    CHECK(memory_use().current - before.current == 4000);
  }
  CHECK(memory_use().current == before.current);
  CHECK(memory_use().peak == before.current + 4000 + large);
}

TEST_CASE("A large block that was freed serves the next request of its size") {
  install_counting_allocator();
  at::Tensor a = at::empty({1 << 20}, at::kFloat);
  const void* where = a.data_ptr();
  a.reset();
  const at::Tensor other = at::empty({(1 << 20) + 64}, at::kFloat);
  CHECK(other.data_ptr() != where);
  const at::Tensor again = at::empty({1 << 20}, at::kFloat);
  CHECK(again.data_ptr() == where);
  const at::Tensor zeroed = at::zeros({1 << 20}, at::kFloat);
  CHECK(zeroed.data_ptr() != where);
}

TEST_CASE("Memory freed by another thread is counted, and empty tensors are nothing") {
  install_counting_allocator();
  const MemoryUse before = memory_use();
  at::Tensor shared = at::empty({1 << 20}, at::kFloat);
  std::thread([owned = std::move(shared)]() mutable { owned.reset(); }).join();
  const at::Tensor empty = at::empty({0}, at::kFloat);
  CHECK(memory_use().current == before.current);
}

TEST_CASE("Memory that is taken without a tensor is counted, and freed by its address alone") {
  install_counting_allocator();
  c10::Allocator* allocator = c10::GetCPUAllocator();
  const MemoryUse before = memory_use();
  for (const std::size_t bytes : {std::size_t{1}, std::size_t{1000}, std::size_t{3} << 20}) {
    void* data = allocator->raw_allocate(bytes);
    CHECK(reinterpret_cast<std::uintptr_t>(data) % 64 == 0);
    CHECK(memory_use().current == before.current + static_cast<std::int64_t>(bytes));
    allocator->raw_deallocate(data);
    CHECK(memory_use().current == before.current);
  }
  allocator->raw_deallocate(allocator->raw_allocate(0));
  CHECK(memory_use().current == before.current);
}

}  // namespace
}  // namespace dtrain::metrics
