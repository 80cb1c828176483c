// A rank that fails in the middle of a step, while its engine's calls are still under way.
#include <catch2/catch.hpp>
#include <stdexcept>

#include "dtrain/parallel/engine/step_engine.h"
#include "support/oracles/small_blocks.h"
#include "support/ranks/delayed_world.h"
#include "support/ranks/local_ranks.h"

namespace dtrain::testing::failed_step_test {
namespace {

// Fails in the second of three blocks, while the unit of the third is gathered; the engine is gone
// when that gather writes.
std::string fail_in_a_step(comm::World& world, const std::string&) {
  DelayedWorld slow(world, std::chrono::milliseconds(200));
  const mesh::MeshGroups groups(slow, mesh::DeviceMesh({{mesh::Axis::dp, world.size()}}),
                                {.shard_size = world.size()});
  const auto fail = [] { throw std::runtime_error("the block's own failure"); };
  try {
    const auto model = small_model({{}, {.on_forward = fail}, {}});
    parallel::StepEngine engine(
        *model, slow, groups,
        {.data = {.shard_size = world.size(), .wrap = {}, .schedule = {.forward_prefetch = true}},
         .optimizer = {}});
    const data::Batch batch = small_batch(world.rank() * 2);
    engine.forward_backward({&batch, 1});
  } catch (const std::runtime_error& error) {
    groups.shards().barrier();  // what was under way has ended
    return error.what();
  }
  return "no failure";
}

const RankProgram failing_program("fail in a step", fail_in_a_step);

TEST_CASE("A step that fails while units are gathered ends with its own error, not with a signal") {
  for (const char* backend : {"gloo", "shm"}) {
    INFO(backend);
    for (const RankOutcome& outcome : on_processes("fail in a step", {.backend = backend})) {
      CHECK(outcome.status == 0);
      CHECK(outcome.text == "the block's own failure");
    }
  }
}

}  // namespace
}  // namespace dtrain::testing::failed_step_test
