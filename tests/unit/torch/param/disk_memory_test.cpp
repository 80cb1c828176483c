#include "dtrain/param/disk_memory.h"

#include <ATen/ATen.h>

#include <catch2/catch.hpp>
#include <memory>

#include "support/temp_folder.h"

namespace dtrain::param::disk_memory_test {
namespace {

TEST_CASE("Memory on a disk stays while a tensor of it is held") {
  const testing::TempFolder folder;
  auto disk = std::make_unique<DiskMemory>(folder.path(""));
  at::Tensor held = disk->allocate(3 * 4096).narrow(0, 4096, 4096);
  disk.reset();
  held.fill_(7);
  CHECK(held.sum().item<std::int64_t>() == 7 * 4096);
}

}  // namespace
}  // namespace dtrain::param::disk_memory_test
