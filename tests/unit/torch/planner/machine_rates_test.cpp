#include "dtrain/planner/internal/machine_rates.h"

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
      .layers = kLevels, .width = 64, .heads = 4, .family = config::bdh::Settings{.neurons = 64}};
  config::bdh::settings_of(config.model).tie_layers = ties_levels;
  config.batch.global = 8;
  set(config, "machine.recompute", recompute);
  return resolve_with_layout(config, {4, {{"--strategy", "fsdp"}, {"--microbatch", "2"}}},
                             {.ranks_per_node = 4, .cores = 4});
}

std::int64_t memory_of(const config::Config& config) {
  return parallel::rank_plan(config, {{Axis::pp, 0}, {Axis::dp, 0}, {Axis::tp, 0}}).memory.total();
}

TEST_CASE("The whole model is timed on one rank, within the machine's memory and no other limit") {
  config::Config asked = on_four_ranks(true);
  set(asked, "machine.memory_limit", "1KiB");
  const TimedJob timed = timed_job(asked, kPlenty, kLevels);
  CHECK(timed.config.model.layers == kLevels);
  CHECK(timed.config.layout.dp == 1);
  CHECK(timed.config.machine.memory_limit.count == 0);
  CHECK(timed.config.batch.microbatch == 2);
  CHECK(timed.pass_factor == 1);
  CHECK(timed.update_factor == 1);
}

TEST_CASE("What runs again is not timed: the prediction adds it") {
  for (const char* recompute : {"level", "every:2", "auto"}) {
    const TimedJob timed = timed_job(on_four_ranks(true, recompute), kPlenty, kLevels);
    CHECK(timed.config.machine.recompute.kind == Recompute::none);
  }
  // Gates are part of a level's kernels, which a prediction counts once.
  const TimedJob timed = timed_job(on_four_ranks(true, "gates"), kPlenty, kLevels);
  CHECK(timed.config.machine.recompute.kind == Recompute::gates);
}

TEST_CASE("Of a model that does not fit fewer levels are timed, and stand for all") {
  for (const bool ties_levels : {true, false}) {
    config::Config asked = on_four_ranks(ties_levels);
    const config::Config whole = timed_job(asked, kPlenty, kLevels).config;
    const std::int64_t half = memory_of(whole) / 2;
    const TimedJob timed = timed_job(asked, half, kLevels);
    const std::int64_t levels = timed.config.model.layers;
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

TEST_CASE("Of a model with more levels than there is time for, fewer are timed and stand for all") {
  config::Config asked = on_four_ranks(true);
  asked.train.freeze = {"embed.weight"};
  const TimedJob timed = timed_job(asked, kPlenty, 1);
  CHECK(timed.config.model.layers == 1);
  CHECK(timed.config.train.freeze.empty());
  CHECK(timed.pass_factor > 0.8 * kLevels);
  CHECK(timed_job(asked, kPlenty, 2 * kLevels).config.model.layers == kLevels);
}

TEST_CASE("Fewer layers are timed of a model whose settings name parameters of the removed ones") {
  config::Config asked = on_four_ranks(false);
  set(asked, "train.freeze", "levels.15.encoder");
  set(asked, "train.no_decay", "levels.15.decoder,levels.14.*");
  const config::Config whole = timed_job(asked, kPlenty, kLevels).config;
  CHECK(whole.train.freeze == asked.train.freeze);
  CHECK(whole.train.no_decay == asked.train.no_decay);
  CHECK(timed_job(asked, kPlenty, 1).config.model.layers == 1);
  CHECK(timed_job(asked, memory_of(whole) / 2, kLevels).config.model.layers < kLevels);
}

TEST_CASE("Ranks share a machine's memory, and each keeps below its own limit") {
  constexpr std::int64_t kGiB = std::int64_t{1} << 30;
  const MemoryLimits both{.rank = 3 * kGiB, .machine = 8 * kGiB};
  CHECK_FALSE(both.is_shared(2));
  CHECK(both.of_rank(2) == 3 * kGiB);
  CHECK(both.is_shared(4));
  CHECK(both.of_rank(4) < 2 * kGiB);  // the programs take some
  CHECK(both.of_rank(1000) == 0);
  const MemoryLimits of_ranks{.rank = 3 * kGiB};
  CHECK(of_ranks.of_rank(1000) == 3 * kGiB);
  CHECK_FALSE(of_ranks.is_shared(1000));
}

TEST_CASE("Layers that do not fit are refused with the reason") {
  CHECK_THROWS_WITH(timed_job(on_four_ranks(true), 1000, kLevels),
                    testing::Names("single layer", "1000 B"));
}

}  // namespace
}  // namespace dtrain::planner::machine_rates_test
