// The calls of a sharded step to the group, and their times, beside the schedule that was printed.
#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <catch2/catch.hpp>

#include "dtrain/model/family.h"
#include "dtrain/parallel/plan/rank_plan.h"
#include "support/engine_run.h"
#include "support/local_ranks.h"
#include "support/settings.h"
#include "support/small_blocks.h"
#include "support/values.h"

namespace dtrain::parallel::data_axis_events_test {
namespace {

using testing::BlockWatch;
using testing::expect;

struct Calls {
  std::int64_t count = 0;
  std::int64_t bytes = 0;
  bool operator==(const Calls&) const = default;
};

// The calls of one operation since call number `after`.
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
  config.model.levels = levels;
  config.model.tie_levels = false;
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

TEST_CASE("Gathers, reductions and their bytes are those that the schedule announces") {
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

TEST_CASE(
    "Frozen parameters are gathered where blocks read them, and neither reduced nor refreshed") {
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

struct Watched {
  // "GATHERS/REDUCTIONS" issued when a level's backward begins, the last level first.
  std::string backwards;
  std::int64_t most_gathered = 0;  // units there when a level runs forward or backward
  std::int64_t announced = 0;
};

// One step of an untied stack of `levels` under full sharding on two ranks, seen by rank 0.
Watched watch(std::int64_t levels, const UnitScheduleOptions& schedule) {
  Watched found;
  testing::on_threads(2, [&](comm::World& world) {
    const mesh::MeshGroups groups(world, mesh::DeviceMesh({{mesh::Axis::dp, 2}}),
                                  {.shard_size = 2});
    const StepEngine* engine = nullptr;
    const auto look = [&](bool is_backward) {
      if (world.rank() != 0) return;
      std::int64_t gathered = 0;
      for (const auto unit : base::first_ids<param::UnitId>(levels + 2)) {
        gathered += engine->data_axis().parameters().is_gathered(unit) ? 1 : 0;
      }
      found.most_gathered = std::max(found.most_gathered, gathered);
      if (is_backward) {
        found.backwards += fmt::format(" {}/{}", calls_of(groups.shards(), "all_gather").count,
                                       calls_of(groups.shards(), "reduce_scatter").count);
      }
    };
    const std::vector<BlockWatch> watches(
        static_cast<std::size_t>(levels),
        {.on_forward = [&] { look(false); }, .on_backward = [&] { look(true); }});
    const auto model = testing::small_model(watches);
    StepEngine own(
        *model, world, groups,
        {.seed = 3, .data = {.shard_size = 2, .wrap = {}, .schedule = schedule}, .optimizer = {}});
    engine = &own;
    const data::Batch batch = testing::small_batch(world.rank() * 2);
    own.forward_backward({&batch, 1});
    if (world.rank() == 0) found.announced = own.data_axis().step().schedule.max_gathered;
  });
  return found;
}

TEST_CASE("A gather is issued before the backward that it overlaps with, a reduction right after") {
  // Forward gathers an embedding, three levels and a head, which stays for its backward. With
  // `pre` the gather of the level that comes next is issued as well.
  CHECK(watch(3, {.backward_prefetch = BackwardPrefetch::pre}).backwards == " 7/1 8/2 9/3");
  CHECK(watch(3, {.backward_prefetch = BackwardPrefetch::post}).backwards == " 6/1 7/2 8/3");
  CHECK(watch(3, {.backward_prefetch = BackwardPrefetch::none}).backwards == " 6/1 7/2 8/3");
  CHECK(watch(3, {.limit_gathers = 1}).backwards == " 6/1 7/2 8/3");
  CHECK(watch(3, {.limit_gathers = 3}).backwards == " 8/1 9/2 9/3");
}

TEST_CASE("Never are more units gathered than the schedule says") {
  for (const std::int64_t limit : {1, 2, 3, 5}) {
    for (const bool forward : {false, true}) {
      INFO("limit " << limit << ", forward prefetch " << forward);
      const Watched found = watch(8, {.forward_prefetch = forward, .limit_gathers = limit});
      CHECK(found.announced == limit);
      CHECK(found.most_gathered == limit);
    }
  }
  const Watched kept = watch(8, {.reshard = Reshard::after_backward});
  CHECK(kept.announced == 10);
  CHECK(kept.most_gathered == 9);  // as levels see it: the head's comes last and goes first
}

}  // namespace
}  // namespace dtrain::parallel::data_axis_events_test
