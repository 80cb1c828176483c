#include "dtrain/optim/grad_scaler.h"

#include <catch2/catch.hpp>

#include "dtrain/base/error.h"
#include "support/messages.h"

namespace dtrain::optim::grad_scaler_test {
namespace {

void update_often(GradScaler& scaler, std::int64_t count, bool found_overflow) {
  for (std::int64_t i = 0; i < count; ++i) scaler.update(found_overflow);
}

TEST_CASE("The scale begins at 65536 and doubles after 2000 good steps") {
  GradScaler scaler;
  CHECK(scaler.scale() == 65536);
  update_often(scaler, 1999, false);
  CHECK(scaler.scale() == 65536);
  scaler.update(false);
  CHECK(scaler.scale() == 131072);
  update_often(scaler, 2000, false);
  CHECK(scaler.scale() == 262144);
}

TEST_CASE("An overflow halves the scale, counts a skipped step and resets the growth interval") {
  GradScaler scaler;
  update_often(scaler, 1999, false);
  scaler.update(true);
  CHECK(scaler.scale() == 32768);
  CHECK(scaler.num_skipped() == 1);
  update_often(scaler, 1999, false);
  CHECK(scaler.scale() == 32768);
  scaler.update(false);
  CHECK(scaler.scale() == 65536);
  CHECK(scaler.num_skipped() == 1);
}

TEST_CASE("The scale falls to 1, where an overflow is an error") {
  GradScaler scaler;
  update_often(scaler, 16, true);
  CHECK(scaler.scale() == 1);
  scaler.update(false);
  try {
    scaler.update(true);
    FAIL("no error");
  } catch (const base::Error& error) {
    CHECK(error.kind() == base::ErrorKind::numerics);
    CHECK_THAT(error.what(), testing::Names("float16", 1, 17));
  }
  CHECK(scaler.scale() == 1);
}

TEST_CASE("The scale stops growing where float32 sums of gradients would overflow") {
  GradScaler scaler;
  update_often(scaler, 2000 * 60, false);
  CHECK(scaler.scale() == 0x1p64);
}

TEST_CASE("A scaler resumes from saved state") {
  GradScaler one;
  one.update(true);
  update_often(one, 1500, false);
  GradScaler other;
  other.state().copy_(one.state());
  CHECK(other.scale() == 32768);
  CHECK(other.num_skipped() == 1);
  update_often(other, 500, false);
  CHECK(other.scale() == 65536);
  CHECK(one.scale() == 32768);
}

}  // namespace
}  // namespace dtrain::optim::grad_scaler_test
