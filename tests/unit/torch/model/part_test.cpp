#include <catch2/catch.hpp>

#include "dtrain/model/model.h"
#include "support/action_ids.h"
#include "support/ids.h"
#include "support/small_blocks.h"

namespace dtrain::model::part_test {
namespace {

using testing::operator""_p;
using testing::operator""_b;

TEST_CASE("A part keeps the parameters' ids and holds those that its blocks use") {
  const auto whole = testing::small_model({{}, {}, {}});
  const std::vector<BlockRange> ranges{{0_b, 1_b}, {2_b, 3_b}};
  const auto part = take_part(testing::small_model({{}, {}, {}}), ranges);
  REQUIRE(part->blocks.size() == 2);
  CHECK(part->blocks.back()->parameters().front() == 2_p);
  CHECK(part->takes_tokens);
  CHECK_FALSE(part->gives_losses);
  REQUIRE(part->parameters.size() == whole->parameters.size());
  for (const param::ParameterId id : whole->parameters.ids()) {
    CHECK(part->parameters[id].name == whole->parameters[id].name);
    CHECK(part->parameters[id].is_held() == (id == 0_p || id == 2_p));
    CHECK(part->parameters[id].whole_shape() == whole->parameters[id].shape);
  }
}

TEST_CASE("A slice that is not held still knows the whole") {
  param::ParameterSpec spec;
  spec.shape = {4, 6};
  spec.cut = param::TensorCut{.dim = 1, .begin = 6, .whole = 12};
  const param::ParameterSpec elsewhere = spec.not_held();
  CHECK(elsewhere.num_elements() == 0);
  CHECK(elsewhere.whole_shape() == std::vector<std::int64_t>{4, 12});
}

}  // namespace
}  // namespace dtrain::model::part_test
