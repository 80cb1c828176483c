// Compares training on the fake accelerator with training on the CPU.
#pragma once

#include <catch2/catch.hpp>

#include "device/on_fake.h"
#include "support/engine_run.h"
#include "support/fake_device/cuda_operators.h"

namespace dtrain::testing {

/// Both ways of running kernels give the CPU's bits without a race, by operators whose demands are
/// known. compile: with graphs.
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
