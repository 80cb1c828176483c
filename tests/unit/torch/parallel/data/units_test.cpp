#include "dtrain/parallel/data/units.h"

#include <catch2/catch.hpp>

#include "dtrain/config/bdh/settings.h"
#include "dtrain/model/registry.h"
#include "support/small_blocks.h"

namespace dtrain::parallel {
namespace {

using Ids = std::vector<param::ParameterId>;

const Ids kOneRegion{0};

std::unique_ptr<model::Model> bdh(std::int64_t levels, bool tied) {
  return model::make_model({.levels = levels,
                            .width = 16,
                            .own = config::bdh::Settings{.heads = 2, .neurons = 32},
                            .tie_levels = tied},
                           16);
}

UnitUses uses_of(const model::Model& model, const WrapPolicy& policy) {
  return unit_uses(
      model,
      param::ArenaLayout(model.parameters, {.unit_begins = unit_begins(model, policy, kOneRegion)}),
      {});
}

TEST_CASE("Each block is a unit, and levels that share matrices share one") {
  const auto untied = bdh(3, false);
  REQUIRE(untied->parameters.size() == 1 + 3 * 3 + 1);
  CHECK(unit_begins(*untied, {}, kOneRegion) == Ids{0, 1, 4, 7, 10});
  const UnitUses uses = uses_of(*untied, {});
  CHECK(uses.of_block == std::vector<std::vector<std::int64_t>>{{0}, {1}, {2}, {3}, {4}});
  CHECK(uses.is_tied == std::vector<bool>(5, false));

  const auto tied = bdh(3, true);
  CHECK(unit_begins(*tied, {}, kOneRegion) == Ids{0, 1, 4});
  const UnitUses shared = uses_of(*tied, {});
  CHECK(shared.of_block == std::vector<std::vector<std::int64_t>>{{0}, {1}, {1}, {1}, {2}});
  CHECK(shared.is_tied == std::vector<bool>{false, true, false});
}

// Elements: embed 128, three mixes of 64, head 128.
TEST_CASE("Neighbours are merged until each unit has as many parameters as asked") {
  const auto model = testing::small_model({{}, {}, {}});
  const auto begins = [&](std::int64_t min_elements) {
    return unit_begins(*model, {.kind = WrapPolicy::Kind::size, .min_elements = min_elements},
                       kOneRegion);
  };
  CHECK(begins(1) == Ids{0, 1, 2, 3, 4});
  CHECK(begins(64) == Ids{0, 1, 2, 3, 4});
  CHECK(begins(65) == Ids{0, 1, 3});  // 128 | 64 + 64 | 64 + 128
  CHECK(begins(128) == Ids{0, 1, 3});
  CHECK(begins(129) == Ids{0, 2});  // 128 + 64 | 64 + 64 + 128
  CHECK(begins(193) == Ids{0});     // what is left, 192, is too little for a unit
  CHECK(begins(1'000'000) == Ids{0});
}

TEST_CASE("Without wrapping the whole model is one unit, used by every block") {
  const auto model = bdh(2, false);
  const WrapPolicy none{.kind = WrapPolicy::Kind::none};
  CHECK(unit_begins(*model, none, kOneRegion) == Ids{0});
  const UnitUses uses = uses_of(*model, none);
  CHECK(uses.of_block == std::vector<std::vector<std::int64_t>>(4, {0}));
  CHECK(uses.is_tied == std::vector<bool>{false});  // its blocks share it, but no parameter
}

TEST_CASE("No unit goes beyond a region, whatever the policy") {
  const auto model = testing::small_model({{}, {}, {}});
  const Ids regions{0, 1, 4};
  CHECK(unit_begins(*model, {}, regions) == Ids{0, 1, 2, 3, 4});
  CHECK(unit_begins(*model, {.kind = WrapPolicy::Kind::none}, regions) == regions);
  const WrapPolicy size{.kind = WrapPolicy::Kind::size, .min_elements = 65};
  CHECK(unit_begins(*model, size, regions) == regions);
}

}  // namespace
}  // namespace dtrain::parallel
