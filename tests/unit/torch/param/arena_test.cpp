#include "dtrain/param/arena.h"

#include <ATen/ATen.h>

#include <catch2/catch.hpp>
#include <memory>

#include "dtrain/base/error.h"
#include "dtrain/param/disk_memory.h"
#include "support/ids.h"
#include "support/temp_folder.h"

namespace dtrain::param::arena_test {
namespace {

using testing::matrix;
using testing::operator""_p;
using testing::operator""_s;
using testing::operator""_u;
using Ranges = std::vector<ElementRange>;

const ParameterSpecs kSpecs{matrix("a", 3, 5), matrix("b", 8, 8), matrix("c", 1, 65)};

TEST_CASE("Every parameter starts at a multiple of 64 elements and overlaps no other") {
  const ArenaLayout layout(kSpecs);
  REQUIRE(layout.num_parameters() == 3);
  CHECK(layout.range(0_p) == ElementRange{0, 15});
  CHECK(layout.range(1_p) == ElementRange{64, 128});
  CHECK(layout.range(2_p) == ElementRange{128, 193});
  CHECK(layout.num_elements() == 256);
}

TEST_CASE("Views share the flat memory, are aligned and leave the padding zero") {
  const at::ScalarType dtype = GENERATE(at::kFloat, at::kDouble);
  const ArenaLayout layout(kSpecs);
  const Arena arena(layout, dtype, private_memory);
  CHECK(arena.flat().scalar_type() == dtype);
  CHECK(arena.flat().numel() == layout.num_elements());
  for (const ParameterId id : layout.parameters()) {
    const at::Tensor& view = arena.view(id);
    CHECK(view.sizes() == layout.shape(id));
    CHECK(view.is_contiguous());
    CHECK(reinterpret_cast<std::uintptr_t>(view.const_data_ptr()) % 64 == 0);
    view.fill_(static_cast<double>(id.value() + 1));
    CHECK(at::equal(arena.slice(layout.range(id)), view.view({-1})));
  }
  CHECK(arena.flat().sum().item<double>() == 15 * 1 + 64 * 2 + 65 * 3);
}

TEST_CASE("Units are split between trained and frozen parameters") {
  const ArenaLayout whole(kSpecs, {.frozen = {1_p}});
  CHECK(whole.num_units() == 3);
  CHECK(whole.num_elements() == ArenaLayout(kSpecs).num_elements());
  CHECK(whole.range(2_p) == ArenaLayout(kSpecs).range(2_p));
  CHECK((whole.ranges(Elements::trained) == Ranges{{0, 64}, {128, 256}}));
  CHECK((whole.ranges(Elements::all, 0_s) == Ranges{{0, 64}, {64, 128}, {128, 256}}));
  CHECK((whole.ranges(Elements::trained, 0_s) == whole.ranges(Elements::trained)));
  const ArenaLayout shards(kSpecs, {.num_shards = 2, .frozen = {1_p}});
  CHECK(shards.unit_range(1_u) == ElementRange{128, 256});
  CHECK(shards.is_frozen(1_p));
  CHECK(shards.is_frozen(1_u));
  CHECK_FALSE(shards.is_frozen(2_u));
  CHECK(shards.num_trained() == 128 + 128);
  CHECK((shards.ranges(Elements::trained) == Ranges{{0, 128}, {256, 384}}));
  CHECK((shards.ranges(Elements::trained, 1_s) == Ranges{{64, 128}, {320, 384}}));
  CHECK(shards.ranges(Elements::all, 1_s).size() == 3);
}

TEST_CASE(
    "Without frozen parameters all units are trained; adjacent frozen parameters share a unit") {
  const ArenaLayout free(kSpecs, {.unit_begins = {0_p, 2_p}});
  CHECK(free.num_units() == 2);
  CHECK((free.ranges(Elements::trained) == Ranges{{0, 256}}));
  CHECK((free.ranges(Elements::all, 0_s) == Ranges{{0, 256}}));
  CHECK(free.largest_unit(Elements::trained) == free.largest_unit());
  const ArenaLayout frozen(kSpecs, {.frozen = {1_p, 0_p}});
  CHECK(frozen.num_units() == 2);
  CHECK((frozen.ranges(Elements::trained) == Ranges{{128, 256}}));
  CHECK(frozen.largest_unit(Elements::trained) == 128);
}

TEST_CASE("Parameters that are not held do not split units") {
  const ParameterSpecs specs{matrix("a", 3, 5), matrix("elsewhere", 0, 5), matrix("b", 8, 8)};
  const ArenaLayout layout(specs, {.frozen = {1_p}});
  CHECK(layout.num_units() == 1);
  CHECK(layout.is_frozen(1_p));
  CHECK_FALSE(layout.is_frozen(0_u));
  CHECK(layout.num_trained() == layout.num_elements());
}

TEST_CASE("An arena of trained elements holds no frozen parameter") {
  const ArenaLayout layout(kSpecs, {.num_shards = 2, .frozen = {1_p}});
  const Arena whole = Arena::of_trained(layout, at::kFloat, private_memory);
  CHECK(whole.flat().numel() == 256);
  CHECK(Arena::bytes_of_trained(layout, at::kFloat) == 4 * 256);
  CHECK_FALSE(whole.holds(layout.range(1_p)));
  CHECK_FALSE(whole.view(1_p).defined());
  whole.view(2_p).fill_(2);
  CHECK(whole.slice(layout.range(2_p)).sum().item<float>() == 65 * 2);
  CHECK(whole.flat().narrow(0, 128, 65).sum().item<float>() == 65 * 2);
  CHECK_THROWS_AS(whole.slice(layout.range(1_p)), base::Error);
  for (const ShardId shard : {0_s, 1_s}) {
    const Arena part = Arena::of_trained_shard(layout, shard, at::kFloat, private_memory);
    CHECK(static_cast<std::int64_t>(part.flat().nbytes()) ==
          Arena::bytes_of_trained_shard(layout, at::kFloat));
    for (const ElementRange own : layout.ranges(Elements::trained, shard)) CHECK(part.holds(own));
    CHECK_FALSE(part.holds(layout.shard_range(1_u, shard)));
  }
}

TEST_CASE("If all is frozen, an arena of trained elements is empty, but allocates a few bytes") {
  const ArenaLayout layout(kSpecs, {.frozen = {0_p, 1_p, 2_p}});
  CHECK(layout.num_units() == 1);
  const Arena arena = Arena::of_trained(layout, at::kFloat, [](std::int64_t bytes) {
    CHECK(bytes > 0);
    return private_memory(bytes);
  });
  CHECK(arena.flat().numel() == 0);
  CHECK(arena.flat().scalar_type() == at::kFloat);
}

TEST_CASE("An arena allocates exactly the bytes it needs") {
  std::int64_t asked = 0;
  const Arena arena(ArenaLayout(kSpecs), at::kDouble, [&](std::int64_t bytes) {
    asked += bytes;
    return private_memory(bytes);
  });
  CHECK(asked == 256 * 8);
}

TEST_CASE("An unknown parameter has no range and no view") {
  const ArenaLayout layout(kSpecs);
  const Arena arena(layout, at::kFloat, private_memory);
  CHECK_THROWS(layout.range(3_p));
  CHECK_THROWS(arena.view(ParameterId(-1)));
}

TEST_CASE("Export views neuron-major storage in the reference's shape without a copy") {
  const ParameterSpec encoder{
      .name = "encoder", .shape = {6, 4}, .export_view = {2, 3, 4}, .export_order = {0, 2, 1}};
  CHECK(encoder.num_elements() == 24);
  CHECK(encoder.export_shape() == std::vector<std::int64_t>{2, 4, 3});
  const at::Tensor storage = at::arange(24, at::TensorOptions().dtype(at::kFloat)).view({6, 4});
  const at::Tensor exported = exported_view(encoder, storage);
  // Head h, width d, neuron i is row h*3 + i, column d of the storage.
  for (std::int64_t h = 0; h < 2; ++h) {
    for (std::int64_t d = 0; d < 4; ++d) {
      for (std::int64_t i = 0; i < 3; ++i) {
        CHECK(exported[h][d][i].item<float>() == static_cast<float>((h * 3 + i) * 4 + d));
      }
    }
  }
  exported.zero_();
  CHECK(storage.count_nonzero().item<std::int64_t>() == 0);
  CHECK_THROWS_AS(exported_view(encoder, storage.view({4, 6})), base::Error);
}

TEST_CASE("Joined dims are one dim of the exported shape, and are split again when stored") {
  // Two heads of three maps with two rows each, exported with the maps side by side.
  const ParameterSpec packed{.name = "c_attn",
                             .shape = {12, 5},
                             .export_view = {2, 3, 2, 5},
                             .export_order = {3, 1, 0, 2},
                             .joined_dims = 3};
  CHECK(packed.export_shape() == std::vector<std::int64_t>{5, 12});
  const at::Tensor storage = at::arange(60, at::TensorOptions().dtype(at::kFloat)).view({12, 5});
  const at::Tensor exported = exported_view(packed, storage);
  for (std::int64_t map = 0; map < 3; ++map) {
    for (std::int64_t head = 0; head < 2; ++head) {
      for (std::int64_t row = 0; row < 2; ++row) {
        CHECK(at::equal(exported.select(1, map * 4 + head * 2 + row),
                        storage[head * 6 + map * 2 + row]));
      }
    }
  }
  const at::Tensor again = at::zeros_like(storage);
  store_exported(packed, exported, again);
  CHECK(at::equal(again, storage));
  CHECK_THROWS_AS(store_exported(packed, exported.t(), again), base::Error);
}

TEST_CASE("Disk memory stays mapped while a tensor uses it") {
  const testing::TempFolder folder;
  auto disk = std::make_unique<DiskMemory>(folder.path(""));
  at::Tensor held = disk->allocate(3 * 4096).narrow(0, 4096, 4096);
  disk.reset();
  held.fill_(7);
  CHECK(held.sum().item<std::int64_t>() == 7 * 4096);
}

}  // namespace
}  // namespace dtrain::param::arena_test
