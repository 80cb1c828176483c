#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <catch2/catch.hpp>

#include "dtrain/config/bdh/settings.h"
#include "dtrain/model/family.h"
#include "dtrain/model/model.h"
#include "dtrain/parallel/data/internal/unit_schedule.h"
#include "dtrain/parallel/plan/rank_plan.h"
#include "support/action_ids.h"
#include "support/engine_run.h"
#include "support/ids.h"
#include "support/oracles/small_blocks.h"
#include "support/ranks/local_ranks.h"
#include "support/settings.h"
#include "support/values.h"

namespace dtrain::parallel::data_axis_events_test {
namespace {

using testing::BlockWatch;
using testing::expect;
using testing::operator""_p;
using testing::operator""_u;
using testing::operator""_b;
using Ids = base::IndexedVector<param::UnitId, param::ParameterId>;
using Units = base::IndexedVector<BlockId, std::vector<param::UnitId>>;

// Compares a sharded step's calls and their times with the predicted schedule.
struct Calls {
  std::int64_t count = 0;
  std::int64_t bytes = 0;
  bool operator==(const Calls&) const = default;
};

// Returns the calls of one operation after call number `after`.
Calls calls_of(const comm::ProcessGroup& group, std::string_view op, std::uint64_t after = 0) {
  Calls calls;
  for (const comm::CallRecord& record : group.calls().records()) {
    if (record.op != op || record.number <= after) continue;
    ++calls.count;
    calls.bytes += record.bytes_sent;
  }
  return calls;
}

config::Config untied(std::int64_t levels) {
  config::Config config = testing::tiny_config();
  config.model.layers = levels;
  config::bdh::settings_of(config.model).tie_layers = false;
  return config;
}

void check_steps_of(const config::Config& config, const std::string& what) {
  const config::Config two = testing::sharded(config, 2, 2, what);
  testing::on_threads(2, [&](comm::World& world) {
    testing::EngineRun run(two, world);
    const comm::ProcessGroup& shards = run.job().groups().shards();
    const DataTraffic traffic = run.job().plan().traffic;
    for (int step = 0; step < 2; ++step) {
      const std::uint64_t before = shards.calls().records().back().number;
      run.steps(1);
      (void)run.job().engine().parameter_norm();  // gathers after an update must have arrived
      (void)run.trace();
      expect(calls_of(shards, "reduce_scatter", before) ==
                 Calls{traffic.reductions, traffic.reduction_bytes},
             "the reductions that were announced");
      expect(calls_of(shards, "all_gather", before) == Calls{traffic.gathers, traffic.gather_bytes},
             "the gathers that were announced");
    }
  });
}

TEST_CASE("Gathers, reductions and their bytes match the schedule") {
  for (const char* what : {"fsdp:full", "fsdp:grad-op", "zero:1", "zero:2", "fsdp:full+local"}) {
    INFO(what);
    CHECK_NOTHROW(check_steps_of(untied(8), what));
    config::Config config = untied(8);
    set(config, "layout.backward_prefetch", "none");
    set(config, "layout.wrap", "size:3000");
    set(config, "machine.dtype", "bfloat16");
    CHECK_NOTHROW(check_steps_of(config, what));
  }
  CHECK_NOTHROW(check_steps_of(testing::tiny_config(), "fsdp:full"));  // its levels are tied
}

TEST_CASE("Frozen parameters are gathered for use, but neither reduced nor refreshed") {
  for (const char* what : {"fsdp:full", "fsdp:grad-op", "zero:1", "zero:2", "fsdp:full+local"}) {
    INFO(what);
    config::Config config = testing::tiny_config();
    const auto traffic = [&] {
      const config::Config two = testing::with_dtypes(testing::sharded(config, 2, 2, what));
      return rank_plan(two, mesh::DeviceMesh({{mesh::Axis::dp, 2}}).coordinate(0)).traffic;
    };
    const DataTraffic free = traffic();
    config.train.freeze = {"encoder", "embed.weight"};
    const DataTraffic frozen = traffic();
    CHECK(frozen.reduction_bytes < free.reduction_bytes);
    const bool is_refreshed = std::string_view(what).starts_with("zero:");
    CHECK((frozen.gather_bytes < free.gather_bytes) == is_refreshed);
    CHECK_NOTHROW(check_steps_of(config, what));
  }
}

const std::vector<param::ParameterId> kOneRegion{0_p};

std::unique_ptr<model::Model> bdh(std::int64_t levels, bool tied) {
  return model::make_model({.layers = levels,
                            .width = 16,
                            .heads = 2,
                            .family = config::bdh::Settings{.neurons = 32, .tie_layers = tied}},
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

TEST_CASE("A block uses both the trained and the frozen units of its parameters") {
  const auto model = bdh(2, true);  // embedding; encoder, encoder_v and decoder; head
  const param::ArenaLayout layout(
      model->parameters, {.unit_begins = unit_begins(*model, {}, kOneRegion), .frozen = {2_p}});
  const UnitUses uses = unit_uses(*model, layout, {});
  CHECK((uses.of_block == Units{{0_u}, {1_u, 2_u, 3_u}, {1_u, 2_u, 3_u}, {4_u}}));
  CHECK((uses.frozen == std::set<param::UnitId>{2_u}));
}

// Elements: embed 128, three mixes of 64, head 128.
TEST_CASE("Neighbours are merged until each unit has the requested size") {
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

TEST_CASE("No unit crosses a region boundary, whatever the policy") {
  const auto model = testing::small_model({{}, {}, {}});
  const std::vector<param::ParameterId> regions{0_p, 1_p, 4_p};
  CHECK(unit_begins(*model, {}, regions) == Ids{0_p, 1_p, 2_p, 3_p, 4_p});
  CHECK(unit_begins(*model, {.kind = WrapPolicy::Kind::none}, regions) == Ids(regions));
  const WrapPolicy size{.kind = WrapPolicy::Kind::size, .min_elements = 65};
  CHECK(unit_begins(*model, size, regions) == Ids(regions));
}

TEST_CASE("Parameters that a stage does not hold join the preceding unit, or the first one") {
  const std::vector<model::BlockRange> levels{{2_b, 3_b}, {4_b, 6_b}};
  const auto stage = model::extract_blocks(bdh(5, false), levels);
  CHECK(unit_begins(*stage, {}, kOneRegion) == Ids{0_p, 10_p, 13_p});
  const param::ArenaLayout layout(stage->parameters,
                                  {.unit_begins = unit_begins(*stage, {}, kOneRegion)});
  CHECK(layout.num_elements() == stage->num_elements());
  CHECK(layout.unit_range(0_u).size() == layout.range(4_p).size() * 3);
}

}  // namespace
}  // namespace dtrain::parallel::data_axis_events_test
