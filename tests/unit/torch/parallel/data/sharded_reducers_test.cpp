// A reducer of shards whose gradients travel in another dtype, driven as the step engine drives it.
// (Sums of shards and replicas: tests/parity/data_axis_test.cpp.)
#include <ATen/ATen.h>

#include <catch2/catch.hpp>

#include "dtrain/parallel/data/shard_reducer.h"
#include "unit/torch/parallel/data/small_units.h"

namespace dtrain::parallel::sharded_reducers_test {
namespace {

// A unit each. Shards end within parameters.
const param::ParameterSpecs kSpecs{spec("a", 292), spec("b", 200), spec("c", 364)};

at::Tensor gradient_of(param::ParameterId id, std::int64_t microbatch) {
  return values_of(microbatch + 9 * id.value(), kSpecs[id].shape[0], at::kFloat);
}

TEST_CASE(
    "Gradients that travel in bfloat16 are still held and added over microbatches in float32") {
  const param::ArenaLayout layout(kSpecs, {.unit_begins = {0_p, 1_p, 2_p}, .num_shards = 2});
  testing::on_threads(2, [&](comm::World& world) {
    const mesh::MeshGroups groups = groups_of(world, 2);
    const UnitSchedule schedule = schedule_of(/*num_microbatches=*/2, /*keeps_shards=*/true);
    ShardReducer reducer({.layout = layout,
                          .schedule = schedule,
                          .options = {.codec = travel_in(at::kBFloat16), .num_microbatches = 2}},
                         groups, param::private_memory);
    for (const auto round : {0_m, 1_m}) {
      reducer.begin_microbatch(round);
      for (const param::ParameterId id : {2_p, 1_p, 0_p}) {
        reducer.add_gradient(id, gradient_of(id, 2 * round.value() + world.rank()));
        reducer.settle(id);
        reducer.reduce(layout.unit_of(id));
      }
      if (round == 0_m) reducer.end_microbatch();
    }
    reducer.finish();
    const auto sum_of_round = [](std::int64_t round) {  // over two ranks, rounded once
      return (gradient_of(1_p, 2 * round).to(at::kBFloat16).to(at::kFloat) +
              gradient_of(1_p, 2 * round + 1).to(at::kBFloat16).to(at::kFloat))
          .to(at::kBFloat16)
          .to(at::kFloat);
    };
    const at::Tensor expected = at::zeros({layout.unit_range(1_u).size()}, at::kFloat);
    expected.narrow(0, 0, kSpecs[1_p].shape[0]).copy_(sum_of_round(0) + sum_of_round(1));
    const param::ElementRange own = layout.shard_range(1_u, param::ShardId(world.rank()));
    const std::int64_t begin = own.begin - layout.unit_range(1_u).begin;
    expect(reducer.gradients().flat().scalar_type() == at::kFloat, "float32 gradients");
    expect(at::equal(reducer.gradients().slice(own), expected.narrow(0, begin, own.size())),
           "a float32 sum of bfloat16 sums");
  });
}

}  // namespace
}  // namespace dtrain::parallel::sharded_reducers_test
