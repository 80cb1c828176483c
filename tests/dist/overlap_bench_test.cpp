// How much of the time that collectives take is hidden under computation; printed only:
// dist_tests "[.bench-overlap]", or scripts/bench.sh overlap.
#include <fmt/format.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdio>

#include "dtrain/base/clock.h"
#include "support/delayed_world.h"
#include "support/engine_run.h"
#include "support/local_ranks.h"

namespace dtrain::testing {
namespace {

constexpr std::chrono::milliseconds kDelay{20};
constexpr int kSteps = 5;

// Eight levels of its own matrices each, of which every backward takes longer than two delays.
config::Config stack(const std::string& what, bool forward_prefetch) {
  config::Config config = tiny_config();
  config.model = {.levels = 8, .width = 128, .heads = 4, .neurons = 512, .tie_levels = false};
  config.data.seq_len = 256;
  config.batch.global = 4;
  config.layout.forward_prefetch = forward_prefetch;
  return sharded(config, 2, 1, what);
}

struct Time {
  double step = 0;  // seconds, the median
  std::int64_t calls = 0;
};

Time time_steps(comm::World& world, const config::Config& config) {
  EngineRun run(config, world);
  run.steps(1);
  std::vector<double> seconds;
  const std::int64_t before = run.job().groups().counters().calls;
  for (int step = 0; step < kSteps; ++step) {
    const auto start = base::Clock::now();
    run.steps(1);
    seconds.push_back(base::seconds_since(start));
  }
  std::sort(seconds.begin(), seconds.end());
  (void)run.job().engine().parameter_norm();  // nothing is under way when the group ends
  return {seconds[seconds.size() / 2], (run.job().groups().counters().calls - before) / kSteps};
}

std::string measure_overlap(comm::World& world, const std::string& what) {
  std::string text;
  for (const bool forward_prefetch : {true, false}) {
    const config::Config config = stack(what, forward_prefetch);
    const Time plain = time_steps(world, config);
    DelayedWorld slow(world, kDelay);
    const Time delayed = time_steps(slow, config);
    const double injected = 1e-3 * static_cast<double>(kDelay.count() * delayed.calls);
    text += fmt::format(
        "  {:<10} forward prefetch {:<3} step {:6.1f} ms, with {} delays of {} ms (sum {:.0f} ms) "
        "{:6.1f} ms: {:4.1f} % of the sum shows\n",
        what, forward_prefetch ? "on" : "off", 1e3 * plain.step, delayed.calls, kDelay.count(),
        1e3 * injected, 1e3 * delayed.step, 100 * (delayed.step - plain.step) / injected);
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
}  // namespace dtrain::testing
