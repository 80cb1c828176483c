#include <catch2/catch.hpp>

#include "dtrain/config/bdh/settings.h"
#include "dtrain/model/family.h"
#include "dtrain/model/model.h"
#include "dtrain/parallel/data/unit_schedule.h"
#include "support/action_ids.h"
#include "support/ids.h"
#include "support/small_blocks.h"

namespace dtrain::parallel::units_test {
namespace {

using testing::operator""_p;
using testing::operator""_u;
using testing::operator""_b;

using Ids = base::IndexedVector<param::UnitId, param::ParameterId>;
using Units = base::IndexedVector<BlockId, std::vector<param::UnitId>>;

const std::vector<param::ParameterId> kOneRegion{0_p};

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
  CHECK(unit_begins(*untied, {}, kOneRegion) == Ids{0_p, 1_p, 4_p, 7_p, 10_p});
  const UnitUses uses = uses_of(*untied, {});
  CHECK((uses.of_block == Units{{0_u}, {1_u}, {2_u}, {3_u}, {4_u}}));

  const auto tied = bdh(3, true);
  CHECK(unit_begins(*tied, {}, kOneRegion) == Ids{0_p, 1_p, 4_p});
  const UnitUses shared = uses_of(*tied, {});
  CHECK((shared.of_block == Units{{0_u}, {1_u}, {1_u}, {1_u}, {2_u}}));
}

TEST_CASE("A block uses the trained and the frozen units that its parameters are cut into") {
  const auto model = bdh(2, true);  // embedding; encoder, encoder_v and decoder; head
  const param::ArenaLayout layout(
      model->parameters, {.unit_begins = unit_begins(*model, {}, kOneRegion), .frozen = {2_p}});
  const UnitUses uses = unit_uses(*model, layout, {});
  CHECK((uses.of_block == Units{{0_u}, {1_u, 2_u, 3_u}, {1_u, 2_u, 3_u}, {4_u}}));
  CHECK((uses.frozen == std::set<param::UnitId>{2_u}));
}

// Elements: embed 128, three mixes of 64, head 128.
TEST_CASE("Neighbours are merged until each unit has as many parameters as asked") {
  const auto model = testing::small_model({{}, {}, {}});
  const auto begins = [&](std::int64_t min_elements) {
    return unit_begins(*model, {.kind = WrapPolicy::Kind::size, .min_elements = min_elements},
                       kOneRegion);
  };
  CHECK(begins(1) == Ids{0_p, 1_p, 2_p, 3_p, 4_p});
  CHECK(begins(64) == Ids{0_p, 1_p, 2_p, 3_p, 4_p});
  CHECK(begins(65) == Ids{0_p, 1_p, 3_p});  // 128 | 64 + 64 | 64 + 128
  CHECK(begins(128) == Ids{0_p, 1_p, 3_p});
  CHECK(begins(129) == Ids{0_p, 2_p});  // 128 + 64 | 64 + 64 + 128
  CHECK(begins(193) == Ids{0_p});       // what is left, 192, is too little for a unit
  CHECK(begins(1'000'000) == Ids{0_p});
}

TEST_CASE("Without wrapping the whole model is one unit, used by every block") {
  const auto model = bdh(2, false);
  const WrapPolicy none{.kind = WrapPolicy::Kind::none};
  CHECK(unit_begins(*model, none, kOneRegion) == Ids{0_p});
  const UnitUses uses = uses_of(*model, none);
  CHECK((uses.of_block == Units(4, std::vector{0_u})));
}

TEST_CASE("No unit goes beyond a region, whatever the policy") {
  const auto model = testing::small_model({{}, {}, {}});
  const std::vector<param::ParameterId> regions{0_p, 1_p, 4_p};
  CHECK(unit_begins(*model, {}, regions) == Ids{0_p, 1_p, 2_p, 3_p, 4_p});
  CHECK(unit_begins(*model, {.kind = WrapPolicy::Kind::none}, regions) == Ids(regions));
  const WrapPolicy size{.kind = WrapPolicy::Kind::size, .min_elements = 65};
  CHECK(unit_begins(*model, size, regions) == Ids(regions));
}

TEST_CASE("What a stage does not hold is part of the unit before it, or of the first one") {
  const std::vector<model::BlockRange> levels{{2_b, 3_b}, {4_b, 6_b}};
  const auto stage = model::take_part(bdh(5, false), levels);
  CHECK(unit_begins(*stage, {}, kOneRegion) == Ids{0_p, 10_p, 13_p});
  const param::ArenaLayout layout(stage->parameters,
                                  {.unit_begins = unit_begins(*stage, {}, kOneRegion)});
  CHECK(layout.num_elements() == stage->num_elements());
  CHECK(layout.unit_range(0_u).size() == layout.range(4_p).size() * 3);
}

}  // namespace
}  // namespace dtrain::parallel::units_test
