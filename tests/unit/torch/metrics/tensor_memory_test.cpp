#include "dtrain/metrics/tensor_memory.h"

#include <ATen/ATen.h>
#include <c10/core/CPUAllocator.h>

#include <catch2/catch.hpp>
#include <thread>

namespace dtrain::metrics::tensor_memory_test {
namespace {

TEST_CASE("Tensor memory is counted to the byte, and the peak persists") {
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

TEST_CASE("Before the first step the cache is bounded by the peak use") {
  install_counting_allocator();
  const MemoryUse before = memory_use();
  for (std::int64_t size = 1; size <= 9; ++size) {
    { const at::Tensor a = at::empty({size << 20}, at::kByte); }
    CHECK(memory_use().kept <= before.peak + (size << 20));
  }
}

TEST_CASE("A freed large block serves the next request of its size") {
  install_counting_allocator();
  at::Tensor a = at::empty({1 << 20}, at::kFloat);
  const at::Tensor other = at::empty({(1 << 20) + 64}, at::kFloat);
  const void* where = a.data_ptr();
  a.reset();
  const at::Tensor again = at::empty({1 << 20}, at::kFloat);
  CHECK(again.data_ptr() == where);
  const at::Tensor zeroed = at::zeros({1 << 20}, at::kFloat);
  CHECK(zeroed.data_ptr() != where);
}

constexpr std::int64_t kMiB = 1 << 20;

at::Tensor block(std::int64_t bytes) { return at::empty({bytes}, at::kByte); }

TEST_CASE("A step caches the blocks of the last step, and the cache does not grow between steps") {
  install_counting_allocator();
  const auto kept = [] { return memory_use().kept; };
  const auto step = [](std::int64_t number, std::int64_t size) {
    begin_step(number);
    { const at::Tensor a = block(size), b = block(size); }
    const at::Tensor c = block(5 * kMiB);
    end_step(number);
  };
  step(1, 3 * kMiB);
  CHECK(kept() >= 11 * kMiB);  // and what no step has used
  step(2, 3 * kMiB);
  CHECK(kept() == 11 * kMiB);
  {
    // An evaluation of other sizes, and more blocks of one: as many of the step's are given up.
    const at::Tensor a = block(4 * kMiB), b = block(3 * kMiB), c = block(3 * kMiB);
    CHECK(kept() <= kMiB);
    const at::Tensor d = block(3 * kMiB);
    CHECK(kept() == 0);
  }
  CHECK(kept() <= 11 * kMiB);
  step(3, 3 * kMiB);
  CHECK(kept() == 11 * kMiB);
  step(4, 2 * kMiB);
  step(5, 2 * kMiB);
  CHECK(kept() == 9 * kMiB);
}

TEST_CASE("Memory freed by another thread is counted, and empty tensors use none") {
  install_counting_allocator();
  const MemoryUse before = memory_use();
  at::Tensor shared = at::empty({1 << 20}, at::kFloat);
  std::thread([owned = std::move(shared)]() mutable { owned.reset(); }).join();
  const at::Tensor empty = at::empty({0}, at::kFloat);
  CHECK(memory_use().current == before.current);
}

TEST_CASE("Memory allocated without a tensor is counted, and freed by its address") {
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

TEST_CASE("A request that fails uses nothing") {
  install_counting_allocator();
  const auto step = [](std::int64_t number) {
    begin_step(number);
    { const at::Tensor a = at::empty({3 << 20}, at::kByte); }
    end_step(number);
  };
  step(1'000'001);
  step(1'000'002);
  const MemoryUse before = memory_use();
  constexpr std::int64_t kTooMuch = std::int64_t{1} << 60;
  for (int attempt = 0; attempt < 3; ++attempt) {
    CHECK_THROWS(at::empty({kTooMuch}, at::kByte));
  }
  CHECK(memory_use().current == before.current);
  // The bound on what is kept between steps has not become smaller by what was never there.
  { const at::Tensor a = at::empty({3 << 20}, at::kByte); }
  CHECK(memory_use().kept == before.kept);
}

}  // namespace
}  // namespace dtrain::metrics::tensor_memory_test
