// Runs thread ranks on one fake device each, and compares them with the same ranks on the CPU.
#pragma once

#include <catch2/catch.hpp>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "support/engine_run.h"
#include "support/fake_device/fake_device.h"
#include "support/fake_device/operators/cuda_operators.h"
#include "support/fake_plugin/fake_world.h"

namespace dtrain::testing {

/// The fake device of a rank.
inline std::shared_ptr<comm::World> on_fake(std::shared_ptr<comm::World> host) {
  const c10::Device device(fake::kType, static_cast<c10::DeviceIndex>(host->rank()));
  return make_fake_world(std::move(host), device);
}

/// Checks that prompt and late execution have the CPU's bits without a race, with listed operators
/// only. compile: with graphs.
inline void check_bits(config::Config config, bool compile = false) {
  fake::install();
  const std::vector<Trace> expected = train_on_threads(config);
  config.machine.compile = compile;
  for (const fake::Execution execution : {fake::Execution::prompt, fake::Execution::late}) {
    fake::set_options({.execution = execution, .seed = 7});
    (void)fake::take_races();
    const std::vector<Trace> found = train_on_threads(config, on_fake);
    CHECK(fake::take_races() == std::vector<std::string>{});
    for (std::size_t rank = 0; rank < expected.size(); ++rank) {
      INFO("rank " << rank);
      CHECK(found[rank].text() == expected[rank].text());
    }
  }
  fake::set_options({});
  CHECK(fake::unlisted_operators() == std::set<std::string>{});
}

}  // namespace dtrain::testing
