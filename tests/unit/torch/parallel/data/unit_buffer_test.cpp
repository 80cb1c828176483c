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

TEST_CASE("A product with a unit that has no memory is an error, not a look at old values") {
  UnitBuffer buffer(kLayout, 1_u, at::kFloat, param::private_memory);
  const at::Tensor weights = buffer.view(1_p);  // (10, 10)
  const at::Tensor x = at::ones({4, 10});
  CHECK_THROWS(at::matmul(x, weights));
  buffer.take();
  CHECK_NOTHROW(at::matmul(x, weights));
  buffer.give_back();
  CHECK_THROWS(at::matmul(x, weights));
  CHECK_THROWS(weights.const_data_ptr<float>());
}

TEST_CASE("Memory is taken once and goes back to whom it came from") {
  std::int64_t asked = 0;
  bool is_back = false;
  UnitBuffer buffer(kLayout, 0_u, at::kDouble, [&](std::int64_t bytes) {
    asked = bytes;
    const at::Tensor memory = param::private_memory(bytes);
    return at::from_blob(
        memory.mutable_data_ptr(), {bytes}, [&is_back, memory](void*) { is_back = true; },
        at::kByte);
  });
  buffer.take();
  CHECK(asked == kLayout.unit_range(0_u).size() * 8);
  CHECK_THROWS_AS(buffer.take(), base::Error);
  CHECK_FALSE(is_back);
  buffer.give_back();
  CHECK(is_back);
  CHECK_NOTHROW(buffer.give_back());
}

// As a call that was under way when a rank failed: it must not be left with memory that is gone.
TEST_CASE("What still holds a unit's tensor when its buffer is destroyed keeps the memory") {
  bool is_back = false;
  auto buffer = std::make_unique<UnitBuffer>(kLayout, 1_u, at::kFloat, [&](std::int64_t bytes) {
    const at::Tensor memory = param::private_memory(bytes);
    return at::from_blob(
        memory.mutable_data_ptr(), {bytes}, [&is_back, memory](void*) { is_back = true; },
        at::kByte);
  });
  buffer->take();
  at::Tensor queued = buffer->flat().narrow(0, 64, 64);
  buffer.reset();
  REQUIRE_FALSE(is_back);
  queued.fill_(1);
  queued = at::Tensor();
  CHECK(is_back);
}

}  // namespace
}  // namespace dtrain::parallel::unit_buffer_test
