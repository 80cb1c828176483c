#include "dtrain/parallel/data/internal/parameter_store.h"

#include <ATen/ATen.h>

#include <catch2/catch.hpp>

#include "unit/torch/parallel/data/small_units.h"

namespace dtrain::parallel::parameter_store_test {
namespace {

// Unit 0: "a" and "b", 320 elements with padding; unit 1: "c", 128 for two shards.
const param::ParameterSpecs kSpecs{spec("a", 100), spec("b", 192), spec("c", 70)};
const param::ArenaLayout kLayout(kSpecs, {.unit_begins = {0_p, 2_p}, .num_shards = 2});

// Returns a unit's expected values after the owners have set their shards in round `round`.
at::Tensor expected_unit(param::UnitId unit, std::int64_t round) {
  return values_of(unit.value() + 2 * round, kLayout.unit_range(unit).size(), at::kFloat);
}

void set_own_shards(ParameterStore& store, std::int64_t rank, std::int64_t round) {
  for (const param::UnitId unit : kLayout.units()) {
    const param::ElementRange own = kLayout.shard_range(unit, param::ShardId(rank));
    store.masters().slice(own).copy_(
        expected_unit(unit, round)
            .narrow(0, own.begin - kLayout.unit_range(unit).begin, own.size()));
  }
}

using Body = std::function<void(ParameterStore&, comm::ProcessGroup&)>;

void on_two_shards(const ParameterStore::Options& options, const Body& body) {
  testing::on_threads(2, [&](comm::World& world) {
    const auto group = testing::group_of_all(world);
    ParameterStore store(
        kLayout, *group, [&](std::int64_t bytes) { return world.allocate(bytes); }, options);
    body(store, *group);
  });
}

TEST_CASE("A gathered unit holds every shard's masters in the compute dtype, until it is freed") {
  const at::ScalarType compute = GENERATE(at::kFloat, at::kBFloat16, at::kHalf);
  on_two_shards({.compute_dtype = compute, .keeps_units = false}, [&](ParameterStore& store,
                                                                      comm::ProcessGroup& group) {
    expect(store.masters().flat().numel() == kLayout.num_elements() / 2, "a shard of the masters");
    for (std::int64_t round = 0; round < 3; ++round) {
      set_own_shards(store, group.rank(), round);
      for (const param::UnitId unit : {1_u, 0_u}) {
        expect(!store.is_gathered(unit), "no unit at first");
        store.begin_gather(unit);
        store.wait(unit);
        expect(store.is_gathered(unit), "a unit");
        expect(same_bits(store.unit_values(unit), expected_unit(unit, round).to(compute)),
               "the masters of this round");
      }
      expect(
          same_bits(store.views()[1_p], expected_unit(0_u, round).narrow(0, 128, 192).to(compute)),
          "b at its place in the unit");
      for (const param::UnitId unit : {0_u, 1_u}) store.free(unit);
    }
    expect(group.calls().counters().calls == 6, "a gather for each unit and round");
  });
}

TEST_CASE("Freeing a unit in flight does not affect the next gather") {
  on_two_shards({.keeps_units = false}, [&](ParameterStore& store, comm::ProcessGroup& group) {
    set_own_shards(store, group.rank(), 0);
    store.begin_gather(0_u);
    store.free(0_u);
    set_own_shards(store, group.rank(), 1);
    store.begin_gather(0_u);
    store.wait(0_u);
    expect(same_bits(store.unit_values(0_u), expected_unit(0_u, 1)), "the second gather's values");
  });
}

TEST_CASE("Units with updated masters are gathered while later masters still change") {
  on_two_shards({.keeps_units = true}, [&](ParameterStore& store, comm::ProcessGroup& group) {
    const auto end_of = [&](param::UnitId unit) {
      return kLayout.shard_range(unit, param::ShardId(group.rank())).end;
    };
    for (std::int64_t round = 0; round < 2; ++round) {
      const auto calls = [&] { return group.calls().counters().calls - 2 * round; };
      set_own_shards(store, group.rank(), round);
      store.refresh_trained_to(end_of(0_u) - 1);
      expect(calls() == 0, "a part that still changes");
      store.refresh_trained_to(end_of(0_u));
      expect(calls() == 1, "the first unit");
      store.refresh_trained();
      expect(calls() == 2, "the rest, once");
      store.wait_for_all();
      for (const param::UnitId unit : {0_u, 1_u}) {
        expect(same_bits(store.unit_values(unit), expected_unit(unit, round)), "all shards");
      }
    }
  });
}

}  // namespace
}  // namespace dtrain::parallel::parameter_store_test
