#include "dtrain/parallel/data/internal/unit_buffer.h"

#include <ATen/ATen.h>
#include <ATen/ops/from_blob.h>

#include <catch2/catch.hpp>

#include "dtrain/base/error.h"
#include "dtrain/param/parameter_use.h"
#include "support/ids.h"
#include "support/values.h"

namespace dtrain::parallel::unit_buffer_test {
namespace {

using testing::matrix;
using testing::operator""_p;
using testing::operator""_u;

// Unit 0 is "a"; unit 1 holds "b" at its element 0 and "c" at 128.
const param::ParameterSpecs kSpecs{matrix("a", 2, 8), matrix("b", 10, 10), matrix("c", 4, 16)};
const param::ArenaLayout kLayout(kSpecs, {.unit_begins = {0_p, 1_p}, .num_shards = 2});

TEST_CASE("Using a released unit is an error and reads no old values") {
  UnitBuffer buffer(kLayout, 1_u, at::kFloat, param::private_memory);
  const at::Tensor weights = buffer.view(1_p);  // (10, 10)
  const at::Tensor x = at::ones({4, 10});
  CHECK_THROWS(at::matmul(x, weights));
  buffer.allocate();
  CHECK_NOTHROW(at::matmul(x, weights));
  buffer.release();
  CHECK_THROWS(at::matmul(x, weights));
  CHECK_THROWS(weights.const_data_ptr<float>());
}

TEST_CASE("Memory is allocated once and returned to its allocator") {
  std::int64_t asked = 0;
  bool is_back = false;
  UnitBuffer buffer(kLayout, 0_u, at::kDouble, [&](std::int64_t bytes) {
    asked = bytes;
    const at::Tensor memory = param::private_memory(bytes);
    return at::from_blob(
        memory.mutable_data_ptr(), {bytes}, [&is_back, memory](void*) { is_back = true; },
        at::kByte);
  });
  buffer.allocate();
  CHECK(asked == kLayout.unit_range(0_u).size() * 8);
  CHECK_THROWS_AS(buffer.allocate(), base::Error);
  CHECK_FALSE(is_back);
  buffer.release();
  CHECK(is_back);
  CHECK_NOTHROW(buffer.release());
}

// Models a call in flight when a rank fails: its memory must stay valid.
TEST_CASE("A tensor keeps its memory after its buffer is destroyed") {
  bool is_back = false;
  auto buffer = std::make_unique<UnitBuffer>(kLayout, 1_u, at::kFloat, [&](std::int64_t bytes) {
    const at::Tensor memory = param::private_memory(bytes);
    return at::from_blob(
        memory.mutable_data_ptr(), {bytes}, [&is_back, memory](void*) { is_back = true; },
        at::kByte);
  });
  buffer->allocate();
  at::Tensor queued = buffer->flat().narrow(0, 64, 64);
  buffer.reset();
  REQUIRE_FALSE(is_back);
  queued.fill_(1);
  queued = at::Tensor();
  CHECK(is_back);
}

}  // namespace
}  // namespace dtrain::parallel::unit_buffer_test
