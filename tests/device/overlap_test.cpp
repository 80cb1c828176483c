// Tests that gathers and reductions of a sharded step overlap with compute, as far as the
// settings allow.
#include <algorithm>
#include <catch2/catch.hpp>
#include <string_view>

#include "device/on_fake.h"
#include "dtrain/config/bdh/settings.h"
#include "support/engine_run.h"
#include "support/fake_device/counters.h"
#include "support/ranks/local_ranks.h"
#include "support/settings.h"

namespace dtrain::testing::overlap_test {
namespace {

using fake::Launch;

config::Config five_units() {
  config::Config config = tiny_config();
  config::bdh::settings_of(config.model).tie_layers = false;
  return config;
}

// Launches on the first device in steps after the first.
struct Steps {
  std::vector<Launch> gathers;
  std::vector<Launch> reductions;
  std::vector<Launch> products;  // matrix products, which mark compute
  std::size_t peak_bytes = 0;
  std::int64_t planned_bytes = 0;  // of gathered units
};

Steps steps_of(const config::Config& config, std::int64_t count = 1) {
  fake::install();
  fake::set_options({.execution = fake::Execution::late, .seed = 3});
  Steps step;
  on_threads(num_ranks(config), [&](comm::World& host) {
    const auto world = on_fake({std::shared_ptr<void>(), &host});
    EngineRun run(config, *world);
    run.steps(1);
    host.control().barrier();
    if (host.rank() == 0) {
      step.planned_bytes = run.job().plan().memory.units;
      fake::reset_counters(0);
      fake::keep_launches(true);
    }
    host.control().barrier();
    run.steps(count);
    if (host.rank() == 0) step.peak_bytes = fake::counters(0).peak_bytes;
  });
  fake::keep_launches(false);
  for (Launch& launch : fake::take_launches()) {
    if (launch.device != 0) continue;
    const std::string_view name = launch.kernel.name;
    if (name == "all_gather")
      step.gathers.push_back(std::move(launch));
    else if (name == "reduce_scatter")
      step.reductions.push_back(std::move(launch));
    else if (name.find("mm") != name.npos)
      step.products.push_back(std::move(launch));
  }
  fake::set_options({});
  CHECK(fake::take_races() == std::vector<std::string>{});
  return step;
}

std::int64_t num_beside(const Launch& launch, const std::vector<Launch>& others) {
  return std::ranges::count_if(others,
                               [&](const Launch& other) { return other.is_beside(launch); });
}

// Gathers that may be in flight while a block computes.
std::int64_t most_in_flight(const Steps& step) {
  std::int64_t most = 0;
  for (const Launch& product : step.products) {
    most = std::max(most, num_beside(product, step.gathers));
  }
  return most;
}

config::Config fully_sharded(const char* prefetch, const char* limit) {
  config::Config config = five_units();
  set(config, "layout.backward_prefetch", prefetch);
  set(config, "layout.limit_gathers", limit);
  return sharded(config, 2, 2, "fsdp:full");
}

TEST_CASE("As many gathers overlap with a block as the settings allow") {
  CHECK(most_in_flight(steps_of(fully_sharded("pre", "1"))) == 0);
  CHECK(most_in_flight(steps_of(fully_sharded("pre", "2"))) == 1);
  CHECK(most_in_flight(steps_of(fully_sharded("pre", "3"))) == 2);
  CHECK(most_in_flight(steps_of(fully_sharded("post", "2"))) == 0);
  CHECK(most_in_flight(steps_of(fully_sharded("post", "3"))) == 1);
  CHECK(most_in_flight(steps_of(fully_sharded("none", "3"))) == 0);
  config::Config forward = fully_sharded("none", "2");
  forward.layout.forward_prefetch = true;
  CHECK(most_in_flight(steps_of(forward)) == 1);
}

TEST_CASE("A device holds as many gathered units as the settings allow") {
  const Steps one = steps_of(fully_sharded("pre", "1"));
  for (const char* limit : {"2", "3"}) {
    const Steps more = steps_of(fully_sharded("pre", limit));
    INFO("a limit of " << limit << ": " << one.peak_bytes << " -> " << more.peak_bytes);
    CHECK(more.planned_bytes > one.planned_bytes);
    CHECK(static_cast<std::int64_t>(more.peak_bytes - one.peak_bytes) ==
          more.planned_bytes - one.planned_bytes);
  }
}

TEST_CASE("Gradient reductions overlap with compute") {
  for (const char* what : {"fsdp:full", "fsdp:grad-op", "zero:1", "zero:2"}) {
    INFO(what);
    const Steps step = steps_of(sharded(five_units(), 2, 2, what));
    const auto beside = std::ranges::count_if(step.reductions, [&](const Launch& reduction) {
      return num_beside(reduction, step.products) > 0;
    });
    // No products follow the last two reductions, of the lowest level and of the embedding.
    const std::int64_t microbatches = std::string_view(what) == "zero:1" ? 1 : 2;
    CHECK(std::ssize(step.reductions) == 5 * microbatches);
    CHECK(beside == std::ssize(step.reductions) - 2);
  }
}

TEST_CASE("Gathers do not wait for reductions") {
  const Steps step = steps_of(sharded(five_units(), 2, 2, "fsdp:full"));
  CHECK(std::ranges::any_of(
      step.gathers, [&](const Launch& gather) { return num_beside(gather, step.reductions) > 0; }));
}

TEST_CASE("Parameter gathers after an update overlap with the next step") {
  const Steps two = steps_of(sharded(five_units(), 2, 1, "zero:1"), 2);
  CHECK(most_in_flight(two) > 1);
}

}  // namespace
}  // namespace dtrain::testing::overlap_test
