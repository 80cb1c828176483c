#include "dtrain/param/arena.h"

#include <ATen/ATen.h>

#include <catch2/catch.hpp>

#include "dtrain/base/error.h"
#include "support/ids.h"

namespace dtrain::param {
namespace {

using testing::operator""_p;

ParameterSpec spec(std::string name, std::int64_t rows, std::int64_t columns) {
  return {.name = std::move(name),
          .shape = {rows, columns},
          .export_view = {rows, columns},
          .export_order = {0, 1}};
}

at::Tensor plain_memory(std::int64_t bytes) {
  return at::zeros({bytes}, at::TensorOptions().dtype(at::kByte));
}

const ParameterSpecs kSpecs{spec("a", 3, 5), spec("b", 8, 8), spec("c", 1, 65)};

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
  const Arena arena(layout, dtype, plain_memory);
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

TEST_CASE("An arena takes exactly the bytes it needs from its allocator") {
  std::int64_t asked = 0;
  const Arena arena(ArenaLayout(kSpecs), at::kDouble, [&](std::int64_t bytes) {
    asked += bytes;
    return plain_memory(bytes);
  });
  CHECK(asked == 256 * 8);
}

TEST_CASE("An unknown parameter has no range and no view") {
  const ArenaLayout layout(kSpecs);
  const Arena arena(layout, at::kFloat, plain_memory);
  CHECK_THROWS(layout.range(3_p));
  CHECK_THROWS(arena.view(ParameterId(-1)));
}

TEST_CASE("Export turns neuron-major storage into the reference's shape without a copy") {
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

}  // namespace
}  // namespace dtrain::param
