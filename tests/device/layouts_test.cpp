// Tests that training on a fake accelerator is bit-identical to the CPU, without races and with one
// host wait per step.
#include <catch2/catch.hpp>
#include <cmath>

#include "device/on_fake.h"
#include "dtrain/config/bdh/settings.h"
#include "support/fake_device/counters.h"
#include "support/oracles/sensitivity.h"
#include "support/ranks/local_ranks.h"
#include "support/settings.h"

namespace dtrain::testing::layouts_test {
namespace {

TEST_CASE("One device has the CPU's bits") { check_bits(tiny_config()); }

TEST_CASE("Accumulation on a device has the CPU's bits") {
  check_bits(laid_out(tiny_config(), 1, 4));
}

TEST_CASE("Replicas on devices have the CPU's bits") { check_bits(laid_out(tiny_config(), 2, 2)); }

TEST_CASE("Shards on devices have the CPU's bits") {
  for (const char* what :
       {"fsdp:full", "fsdp:grad-op", "zero:1", "zero:2", "zero:3", "fsdp:full+local"}) {
    INFO(what);
    check_bits(sharded(tiny_config(), 2, 2, what));
  }
  check_bits(sharded(tiny_config(), 4, 1, "hybrid:2"));
}

TEST_CASE("Meshes of devices have the CPU's bits") {
  check_bits(meshed(tiny_config(), {{Axis::tp, 2}}, 2));
  check_bits(meshed(tiny_config(), {{Axis::pp, 2}}, 2));
  check_bits(meshed(tiny_config(), {{Axis::pp, 2}, {Axis::dp, 2}, {Axis::tp, 2}}, 2));
}

config::Config offloading(config::Config config, const char* what) {
  set(config, "machine.device", "fake");
  set(config, "machine.offload", what);
  return config;
}

TEST_CASE("Offloading has the CPU's bits") {
  for (const char* what : {"optimizer", "all"}) {
    INFO(what);
    const config::Config config = offloading(tiny_config(), what);
    check_bits(config);
    check_bits(laid_out(config, 2, 2));
    check_bits(sharded(config, 2, 2, "fsdp:full"));
    check_bits(sharded(config, 2, 2, "zero:1"));
    check_bits(meshed(config, {{Axis::pp, 2}, {Axis::dp, 2}}, 2));
    for (const char* dtype : {"bfloat16", "float16"}) {
      config::Config low = config;
      set(low, "machine.dtype", dtype);
      check_bits(low);
      check_bits(sharded(low, 2, 2, "fsdp:full"));
    }
  }
}

// The peak memory of the first device in a step after the first.
std::size_t peak_of(const config::Config& config, fake::Execution execution) {
  fake::install();
  fake::set_options({.execution = execution, .seed = 3});
  std::size_t peak = 0;
  on_threads(num_ranks(config), [&](comm::World& host) {
    const auto world = on_fake({std::shared_ptr<void>(), &host});
    EngineRun run(config, *world);
    run.steps(1);
    host.control().barrier();
    if (host.rank() == 0) fake::reset_counters(0);
    host.control().barrier();
    run.steps(1);
    if (host.rank() == 0) peak = fake::counters(0).peak_bytes;
  });
  fake::set_options({});
  CHECK(fake::take_races() == std::vector<std::string>{});
  return peak;
}

TEST_CASE("Windows of offloaded state do not accumulate if the host runs ahead of its device") {
  config::Config config = offloading(tiny_config(), "all");
  config::bdh::settings_of(config.model).tie_layers = false;
  for (const char* dtype : {"float32", "bfloat16"}) {
    INFO(dtype);
    set(config, "machine.dtype", dtype);
    CHECK(peak_of(config, fake::Execution::late) == peak_of(config, fake::Execution::prompt));
    const config::Config shards = sharded(config, 2, 2, "fsdp:full");
    CHECK(peak_of(shards, fake::Execution::late) == peak_of(shards, fake::Execution::prompt));
  }
}

// Counts host waits for the first of `ranks` devices in a step.
std::uint64_t waits_in_a_step(const config::Config& config) {
  fake::install();
  std::uint64_t waits = 0;
  on_threads(num_ranks(config), [&](comm::World& host) {
    const auto world = on_fake({std::shared_ptr<void>(), &host});
    EngineRun run(config, *world);
    run.steps(1);  // creates the tables
    if (host.rank() == 0) fake::reset_counters(0);
    run.steps(1);
    if (host.rank() == 0) waits = fake::counters(0).host_waits.total();
  });
  return waits;
}

TEST_CASE("The host waits for a device once per step") {
  CHECK(waits_in_a_step(tiny_config()) == 1);
  CHECK(waits_in_a_step(laid_out(tiny_config(), 1, 4)) == 1);
  CHECK(waits_in_a_step(laid_out(tiny_config(), 2, 2)) == 1);
  CHECK(waits_in_a_step(sharded(tiny_config(), 2, 2, "fsdp:full")) == 1);
  CHECK(waits_in_a_step(sharded(tiny_config(), 2, 2, "zero:1")) == 1);
  CHECK(waits_in_a_step(offloading(tiny_config(), "optimizer")) == 1);
  CHECK(waits_in_a_step(offloading(tiny_config(), "all")) == 1);
  CHECK(waits_in_a_step(meshed(tiny_config(), {{Axis::pp, 2}, {Axis::tp, 2}}, 2)) == 1);
}

TEST_CASE("Devices have the CPU's results in 16 bits") {
  for (const char* dtype : {"bfloat16", "float16"}) {
    config::Config config = tiny_config();
    set(config, "machine.dtype", dtype);
    check_bits(config);
  }
}

config::Config compressing(config::Config config, const char* scheme) {
  set(config, "machine.compress", scheme);
  set(config, "machine.compress_min_elements", "64");
  return config;
}

TEST_CASE("Gradient compression on devices has the CPU's bits") {
  for (const char* scheme : {"bf16", "fp16", "topk:0.05"}) {
    INFO(scheme);
    const config::Config config = compressing(tiny_config(), scheme);
    check_bits(laid_out(config, 2, 2));
    check_bits(sharded(config, 4, 1, "hybrid:2"));
  }
}

// A device uses another GEMM library than the CPU.
TEST_CASE("PowerSGD factors are equal on all devices and near the CPU's") {
  fake::install();
  const TraceBound bound =
      rounding_bound_of(laid_out(compressing(tiny_config(), "powersgd:2"), 2, 2), at::kFloat);
  for (const config::Config& config :
       {laid_out(compressing(tiny_config(), "powersgd:2"), 2, 2),
        sharded(compressing(tiny_config(), "powersgd:2"), 4, 1, "hybrid:2")}) {
    const std::vector<Trace> expected = train_on_threads(config);
    (void)fake::take_races();
    const std::vector<Trace> found = train_on_threads(config, on_fake);
    CHECK(fake::take_races() == std::vector<std::string>{});
    for (const Trace& trace : found) CHECK(trace.losses == found.front().losses);
    for (std::size_t step = 0; step < expected.front().losses.size(); ++step) {
      const double loss = found.front().losses[step] - expected.front().losses[step];
      CHECK(std::abs(loss) <= 2 * bound.losses[step]);
      const double norm = found.front().norms[step] / expected.front().norms[step];
      CHECK(std::abs(norm - 1) <= 2 * bound.norms[step]);
    }
  }
}

}  // namespace
}  // namespace dtrain::testing::layouts_test
