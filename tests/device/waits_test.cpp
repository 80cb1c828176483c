// Tests that every stream wait is needed: without it there is a race or a different result.
#include "support/fake_device/waits.h"

#include <array>
#include <catch2/catch.hpp>
#include <cstddef>
#include <exception>
#include <iostream>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "device/on_fake.h"
#include "dtrain/config/bdh/settings.h"
#include "support/engine_run.h"
#include "support/settings.h"

namespace dtrain::testing::waits_test {
namespace {

struct Outcome {
  std::vector<std::string> traces;  // by rank
  std::vector<fake::WaitSite> sites;
  std::vector<std::string> races;
  std::string error;
};

// Hardware queues per device: one per stream, or CUDA's default of 8.
constexpr std::array<std::size_t, 2> kQueues{0, 8};

struct Run {
  const config::Config& config;
  std::size_t queues;
};

Outcome train_without(std::optional<std::uint64_t> wait, const Run& run) {
  fake::set_options({.execution = fake::Execution::late, .seed = 5, .queues = run.queues});
  fake::watch_waits(wait);
  Outcome outcome;
  try {
    for (const Trace& trace : train_on_threads(run.config, on_fake)) {
      outcome.traces.push_back(trace.text());
    }
  } catch (const std::exception& caught) {
    outcome.error = caught.what();
  }
  fake::set_options({});
  outcome.sites = fake::unwatch_waits();
  outcome.races = fake::take_races();
  return outcome;
}

// Reports the waits whose removal has no effect.
std::vector<std::string> unnoticed_waits(const Run& run) {
  fake::install();
  const Outcome whole = train_without({}, run);
  CHECK(whole.error.empty());
  CHECK(whole.races == std::vector<std::string>{});
  CHECK(!whole.sites.empty());
  std::vector<std::string> unnoticed;
  for (const fake::WaitSite& site : whole.sites) {
    const Outcome without = train_without(site.id, run);
    const bool is_noticed =
        !without.races.empty() || !without.error.empty() || without.traces != whole.traces;
    std::cout << (is_noticed ? "noticed   " : "SURVIVED  ") << site.text << std::endl;
    if (!is_noticed) unnoticed.push_back(site.text);
  }
  return unnoticed;
}

// Two steps, so that the second overlaps with pending work of the first.
config::Config two_steps() {
  config::Config config = tiny_config();
  config::bdh::settings_of(config.model).tie_layers = false;
  config.train.steps = 2;
  return config;
}

TEST_CASE("Every stream wait of full sharding is needed") {
  const config::Config config = sharded(two_steps(), 2, 2, "fsdp:full");
  for (const std::size_t queues : kQueues) {
    INFO(queues << " queues");
    CHECK(unnoticed_waits({config, queues}) == std::vector<std::string>{});
  }
}

TEST_CASE("Pipelines whose streams share 8 hardware queues have the CPU's bits") {
  fake::install();
  for (const char* schedule : {"gpipe", "1f1b"}) {
    config::Config config = two_steps();
    config.model.layers = 4;
    set(config, "layout.schedule_pp", schedule);
    config = meshed(config, {{Axis::pp, 4}, {Axis::dp, 2}}, 4);
    const std::vector<Trace> expected = train_on_threads(config);
    const Outcome found = train_without({}, {config, 8});
    INFO(schedule << " " << found.error);
    CHECK(found.races == std::vector<std::string>{});
    REQUIRE(found.traces.size() == expected.size());
    for (std::size_t rank = 0; rank < expected.size(); ++rank) {
      CHECK(found.traces[rank] == expected[rank].text());
    }
  }
}

TEST_CASE("Every stream wait of every layout is needed", "[.waits]") {
  const config::Config config = two_steps();
  std::map<std::string, config::Config> layouts{
      {"ddp", laid_out(config, 2, 2)},
      {"hybrid", sharded(config, 4, 1, "hybrid:2")},
      {"tp", meshed(config, {{Axis::tp, 2}}, 2)},
      {"pp", meshed(config, {{Axis::pp, 2}}, 2)},
      {"3d", meshed(config, {{Axis::pp, 2}, {Axis::dp, 2}, {Axis::tp, 2}}, 2)}};
  for (const char* what : {"fsdp:grad-op", "zero:1", "zero:2", "fsdp:full+local"}) {
    layouts[what] = sharded(config, 2, 2, what);
  }
  config::Config half = config;
  half.machine.dtype = config::Dtype::bfloat16;
  layouts["fsdp:full in bfloat16"] = sharded(half, 2, 2, "fsdp:full");
  for (const auto& [name, layout] : layouts) {
    DYNAMIC_SECTION(name) {
      for (const std::size_t queues : kQueues) {
        std::cout << "--- " << name << ", queues: " << queues << std::endl;
        CHECK(unnoticed_waits({layout, queues}) == std::vector<std::string>{});
      }
    }
  }
}

}  // namespace
}  // namespace dtrain::testing::waits_test
