// Every wait of one stream for another is needed: without it there is a race, or another result.
#include "support/fake_device/waits.h"

#include <catch2/catch.hpp>
#include <exception>
#include <iostream>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "device/on_fake.h"
#include "support/engine_run.h"

namespace dtrain::testing {
namespace {

struct Outcome {
  std::vector<std::string> traces;  // by rank
  std::vector<fake::WaitSite> sites;
  std::vector<std::string> races;
  std::string error;
};

Outcome train_without(std::optional<std::uint64_t> wait, const config::Config& config) {
  fake::set_options({.execution = fake::Execution::late, .seed = 5});
  fake::watch_waits(wait);
  Outcome outcome;
  try {
    for (const Trace& trace : train_on_threads(config, on_fake)) {
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

// Reports whose absence nobody notices.
std::vector<std::string> unnoticed_waits(const config::Config& config) {
  fake::install();
  const Outcome whole = train_without({}, config);
  CHECK(whole.error.empty());
  CHECK(whole.races == std::vector<std::string>{});
  CHECK(!whole.sites.empty());
  std::vector<std::string> unnoticed;
  for (const fake::WaitSite& site : whole.sites) {
    const Outcome without = train_without(site.id, config);
    const bool is_noticed =
        !without.races.empty() || !without.error.empty() || without.traces != whole.traces;
    std::cout << (is_noticed ? "noticed   " : "SURVIVED  ") << site.text << std::endl;
    if (!is_noticed) unnoticed.push_back(site.text);
  }
  return unnoticed;
}

// Two steps, so that the second one meets what the first one leaves under way.
config::Config two_steps() {
  config::Config config = tiny_config();
  config.model.tie_levels = false;
  config.train.steps = 2;
  return config;
}

TEST_CASE("No wait of full sharding can be left out") {
  CHECK(unnoticed_waits(sharded(two_steps(), 2, 2, "fsdp:full")) == std::vector<std::string>{});
}

TEST_CASE("No wait of any layout can be left out", "[.waits]") {
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
      std::cout << "--- " << name << std::endl;
      CHECK(unnoticed_waits(layout) == std::vector<std::string>{});
    }
  }
}

}  // namespace
}  // namespace dtrain::testing
