#include "dtrain/planner/machine_rates.h"

#include <catch2/catch.hpp>

#include "dtrain/base/error.h"
#include "dtrain/config/bdh/settings.h"
#include "dtrain/parallel/plan/rank_plan.h"
#include "dtrain/planner/planner.h"
#include "support/messages.h"
#include "support/settings.h"

namespace dtrain::planner::machine_rates_test {
namespace {

using mesh::Axis;
using Recompute = config::RecomputeSetting::Kind;

constexpr std::int64_t kPlenty = std::int64_t{1} << 40;  // bytes
constexpr std::int64_t kLevels = 16;

// A layout of four ranks, as the planner has it before it is timed.
config::Config on_four_ranks(bool ties_levels, const std::string& recompute = "none") {
  config::Config config;
  config.model = {
      .levels = kLevels, .width = 64, .own = config::bdh::Settings{.heads = 4, .neurons = 64}};
  config.model.tie_levels = ties_levels;
  config.batch.global = 8;
  set(config, "machine.recompute", recompute);
  return with_layout(config, {4, {{"--strategy", "fsdp"}, {"--microbatch", "2"}}},
                     {.ranks_per_node = 4, .cores = 4});
}

std::int64_t memory_of(const config::Config& config) {
  return parallel::rank_plan(config, {{Axis::pp, 0}, {Axis::dp, 0}, {Axis::tp, 0}}).memory.total();
}

TEST_CASE("The whole model is timed on one rank, within the machine's memory and no other limit") {
  config::Config asked = on_four_ranks(true);
  set(asked, "machine.memory_limit", "1KiB");
  const TimedJob timed = timed_job(asked, kPlenty);
  CHECK(timed.config.model.levels == kLevels);
  CHECK(timed.config.layout.dp == 1);
  CHECK(timed.config.machine.memory_limit.count == 0);
  CHECK(timed.config.batch.microbatch == 2);
  CHECK(timed.pass_factor == 1);
  CHECK(timed.update_factor == 1);
}

TEST_CASE("What runs again is not timed: the prediction adds it") {
  for (const char* recompute : {"level", "every:2", "auto"}) {
    const TimedJob timed = timed_job(on_four_ranks(true, recompute), kPlenty);
    CHECK(timed.config.machine.recompute.kind == Recompute::none);
  }
  // Gates are part of a level's kernels, which a prediction counts once.
  const TimedJob timed = timed_job(on_four_ranks(true, "gates"), kPlenty);
  CHECK(timed.config.machine.recompute.kind == Recompute::gates);
}

TEST_CASE("Of a model that does not fit fewer levels are timed, and stand for all") {
  for (const bool ties_levels : {true, false}) {
    config::Config asked = on_four_ranks(ties_levels);
    const config::Config whole = timed_job(asked, kPlenty).config;
    const std::int64_t half = memory_of(whole) / 2;
    const TimedJob timed = timed_job(asked, half);
    const std::int64_t levels = timed.config.model.levels;
    REQUIRE(levels < kLevels);
    CHECK(memory_of(timed.config) <= half);
    // Embedding and head are there once.
    const auto factor = static_cast<double>(kLevels) / static_cast<double>(levels);
    CHECK(timed.pass_factor < factor);
    CHECK(timed.pass_factor > 0.8 * factor);
    if (ties_levels) {
      CHECK(timed.update_factor == 1);
    } else {
      CHECK(timed.update_factor > 0.8 * factor);
    }
  }
}

TEST_CASE("What no level fits is refused with the reason") {
  CHECK_THROWS_WITH(timed_job(on_four_ranks(true), 1000), testing::Names("one level", "1000 B"));
}

}  // namespace
}  // namespace dtrain::planner::machine_rates_test
