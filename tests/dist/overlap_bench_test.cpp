// How much of the time that collectives take is hidden under computation; printed only:
// dist_tests "[.bench-overlap]", or scripts/bench.sh overlap.
#include <fmt/format.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdio>

#include "dtrain/base/clock.h"
#include "dtrain/config/bdh/settings.h"
#include "support/engine_run.h"
#include "support/ranks/delayed_world.h"
#include "support/ranks/local_ranks.h"

namespace dtrain::testing::overlap_bench_test {
namespace {

constexpr std::chrono::milliseconds kDelay{20};
constexpr int kSteps = 5;

// Eight levels of its own matrices each, of which every backward takes longer than two delays.
config::Config stack(const std::string& what, bool forward_prefetch) {
  config::Config config = tiny_config();
  config.model = {.layers = 8,
                  .width = 128,
                  .heads = 4,
                  .family = config::bdh::Settings{.neurons = 512, .tie_layers = false}};
  config.data.seq_len = 256;
  config.batch.global = 4;
  config.layout.forward_prefetch = forward_prefetch;
  return sharded(config, 2, 1, what);
}

double time_step(EngineRun& run) {
  const auto start = base::Clock::now();
  run.steps(1);
  return base::seconds_since(start);
}

std::string measure_overlap(comm::World& world, const std::string& what) {
  std::string text;
  for (const bool forward_prefetch : {true, false}) {
    const config::Config config = stack(what, forward_prefetch);
    DelayedWorld slow_world(world, kDelay);
    EngineRun plain(config, world);
    EngineRun delayed(config, slow_world);
    const mesh::MeshGroups& groups = delayed.job().groups();
    const auto calls_so_far = [&] {
      return groups.world().calls().counters().calls + groups.shards().calls().counters().calls;
    };
    std::vector<double> plain_seconds;
    std::vector<double> delayed_seconds;
    std::int64_t calls = 0;                      // of a step
    for (int step = 0; step < kSteps; ++step) {  // in turn, so that both see the same machine
      plain_seconds.push_back(time_step(plain));
      const std::int64_t before = calls_so_far();
      delayed_seconds.push_back(time_step(delayed));
      calls = calls_so_far() - before;
    }
    for (EngineRun* run : {&plain, &delayed}) (void)run->job().engine().parameter_norm();
    const double plain_step = *std::min_element(plain_seconds.begin(), plain_seconds.end());
    const double delayed_step = *std::min_element(delayed_seconds.begin(), delayed_seconds.end());
    const double injected = 1e-3 * static_cast<double>(kDelay.count() * calls);
    text += fmt::format(
        "  {:<10} forward prefetch {:<3} step {:6.1f} ms, with {} delays of {} ms (sum {:.0f} ms) "
        "{:6.1f} ms: {:4.1f} % of the sum shows\n",
        what, forward_prefetch ? "on" : "off", 1e3 * plain_step, calls, kDelay.count(),
        1e3 * injected, 1e3 * delayed_step, 100 * (delayed_step - plain_step) / injected);
  }
  return text;
}

const RankProgram overlap_program("measure overlap", measure_overlap);

TEST_CASE("Delays of collectives that show in a step", "[.bench-overlap]") {
  for (const char* what : {"fsdp:full", "zero:2"}) {
    const auto outcomes = on_processes(
        "measure overlap",
        {.size = 2, .argument = what, .backend = "shm", .limit = std::chrono::minutes(5)});
    std::printf("%s%s", outcomes[0].text.c_str(), outcomes[0].standard_error.c_str());
  }
}

}  // namespace
}  // namespace dtrain::testing::overlap_bench_test
