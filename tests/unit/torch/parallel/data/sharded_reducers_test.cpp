// The two reducers of a sharded data axis, driven as the step engine drives them, against a tree
// over all microbatches that is written anew (support/values.h).
#include "dtrain/parallel/data/sharded_reducers.h"

#include <ATen/ATen.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <catch2/catch.hpp>

#include "dtrain/data/batch.h"
#include "unit/torch/parallel/data/small_units.h"

namespace dtrain::parallel::sharded_reducers_test {
namespace {

// Unit 0: "a", "b"; unit 1: "c"; unit 2: "frozen", "rare". Shards end within parameters.
const param::ParameterSpecs kSpecs{spec("a", 100), spec("b", 192), spec("c", 200),
                                   spec("frozen", 64), spec("rare", 300)};
constexpr param::ParameterId kFrozen = 3_p;  // never gets a gradient
constexpr param::ParameterId kRare = 4_p;    // gets one in microbatch 1 of all ranks' alone

struct Case {
  std::int64_t num_shards = 2;
  std::int64_t num_replicas = 1;
  std::int64_t grad_accum = 1;
  bool keeps_shards = true;  // else whole gradients, reduced in the last microbatch
  bool operator==(const Case&) const = default;
};

param::ArenaLayout layout_for(std::int64_t num_shards) {
  return param::ArenaLayout(kSpecs, {.unit_begins = {0_p, 2_p, 3_p}, .num_shards = num_shards});
}

std::int64_t count_of(param::ParameterId id) { return kSpecs[id].shape[0]; }

// The gradient of global microbatch m; undefined: none. Two uses, whose sum is one gradient.
at::Tensor gradient_of(param::ParameterId id, std::int64_t m) {
  if (id == kFrozen || (id == kRare && m != 1)) return {};
  return values_of(m + 9 * id.value(), count_of(id), at::kFloat);
}

// The tree over microbatches [first, first + count), where a missing gradient is zero.
at::Tensor tree_of(param::ParameterId id, std::int64_t first, std::int64_t count) {
  if (count == 1) {
    const at::Tensor gradient = gradient_of(id, first);
    return gradient.defined() ? gradient : at::zeros({count_of(id)}, at::kFloat);
  }
  return tree_of(id, first, count / 2) + tree_of(id, first + count / 2, count / 2);
}

void step(GradientReducer& reducer, const param::ArenaLayout& layout,
          const data::MicrobatchDeal& deal, bool every_microbatch) {
  for (const auto id : base::first_ids<data::MicrobatchId>(deal.grad_accum)) {
    const bool is_last = id + 1 == data::MicrobatchId(deal.grad_accum);
    reducer.begin_microbatch(id);
    for (std::int64_t left = layout.num_units(); left > 0; --left) {
      const param::UnitId unit(left - 1);
      for (const param::ParameterId parameter : layout.parameters_of(unit)) {
        const at::Tensor gradient = gradient_of(parameter, deal.number_of(id));
        if (gradient.defined()) reducer.add_gradient(parameter, gradient);
        reducer.settle(parameter);
      }
      if (every_microbatch || is_last) reducer.reduce(unit);
    }
    if (!is_last) reducer.end_microbatch();
  }
  reducer.finish();
}

std::unique_ptr<GradientReducer> make_reducer(const param::ArenaLayout& layout,
                                              const mesh::MeshGroups& groups,
                                              const param::ArenaAllocator& allocate,
                                              const Case& test) {
  const UnitSchedule schedule = schedule_of(test.grad_accum, test.keeps_shards);
  const ReducerSetup setup{
      .layout = layout, .schedule = schedule, .options = {.num_microbatches = test.grad_accum}};
  if (!test.keeps_shards) {
    return std::make_unique<WholeReducer>(setup, groups, allocate);
  }
  return std::make_unique<ShardReducer>(setup, groups, allocate);
}

// The rank's shards are the tree's, and padding is zero.
void check_shards(const GradientReducer& reducer, const param::ArenaLayout& layout,
                  param::ShardId shard, std::int64_t num_microbatches) {
  for (const param::UnitId unit : layout.units()) {
    const param::ElementRange whole = layout.unit_range(unit);
    const param::ElementRange own = layout.shard_range(unit, shard);
    const at::Tensor expected = at::zeros({whole.size()}, at::kFloat);
    for (const param::ParameterId id : layout.parameters_of(unit)) {
      expected.narrow(0, layout.range(id).begin - whole.begin, count_of(id))
          .copy_(tree_of(id, 0, num_microbatches));
    }
    expect(at::equal(reducer.gradients().slice(own),
                     expected.narrow(0, own.begin - whole.begin, own.size())),
           "the tree's sum in unit " + std::to_string(unit.value()));
  }
}

void run_case(const Case& test) {
  const std::int64_t ranks = test.num_shards * test.num_replicas;
  const param::ArenaLayout layout = layout_for(test.num_shards);
  testing::on_threads(ranks, [&](comm::World& world) {
    const mesh::MeshGroups groups = groups_of(world, test.num_shards);
    const auto reducer = make_reducer(
        layout, groups, [&](std::int64_t bytes) { return world.allocate(bytes); }, test);
    const data::MicrobatchDeal deal{.rank = world.rank(),
                                    .grad_accum = test.grad_accum,
                                    .interleave = test.keeps_shards ? test.num_shards : 1};
    for (int round = 0; round < 3; ++round) {
      step(*reducer, layout, deal, test.keeps_shards);
      check_shards(*reducer, layout, param::ShardId(groups.shards().rank()),
                   ranks * test.grad_accum);
    }
    const auto expected =
        static_cast<std::int64_t>(3 * 3) * (test.keeps_shards ? test.grad_accum : 1);
    expect(groups.shards().calls().counters().calls == expected, "reductions of all units");
  });
}

TEST_CASE("Shards of gradients are the tree's sums, whatever ranks and microbatches there are") {
  const bool keeps_shards = GENERATE(true, false);
  for (const std::int64_t num_shards : {2, 4, 8}) {
    for (const std::int64_t grad_accum : {1, 2, 4}) {
      INFO(num_shards << " shards, " << grad_accum << " microbatches, sharded " << keeps_shards);
      CHECK_NOTHROW(run_case(
          {.num_shards = num_shards, .grad_accum = grad_accum, .keeps_shards = keeps_shards}));
    }
  }
  // The order shows: left to right over eight microbatches gives other bits.
  at::Tensor left_to_right = gradient_of(0_p, 0).clone();
  for (std::int64_t m = 1; m < 8; ++m) left_to_right.add_(gradient_of(0_p, m));
  CHECK_FALSE(same_bits(left_to_right, tree_of(0_p, 0, 8)));
}

TEST_CASE("Replicas of shards end with the sum over all copies, in tree order") {
  const bool keeps_shards = GENERATE(true, false);
  for (const auto& [num_shards, num_replicas] : {std::pair{2, 2}, {2, 4}, {4, 2}}) {
    for (const std::int64_t grad_accum : {1, 4}) {
      INFO(num_shards << " shards x " << num_replicas << ", sharded " << keeps_shards);
      CHECK_NOTHROW(run_case({.num_shards = num_shards,
                              .num_replicas = num_replicas,
                              .grad_accum = grad_accum,
                              .keeps_shards = keeps_shards}));
    }
  }
}

// World memory, counted while tensors hold it.
class CountedMemory {
 public:
  [[nodiscard]] at::Tensor allocate(std::int64_t bytes) {
    now_ += bytes;
    most_ = std::max(most_, now_);
    const at::Tensor memory = at::zeros({bytes}, at::kByte);
    return at::from_blob(
        memory.mutable_data_ptr(), {bytes}, [this, memory, bytes](void*) { now_ -= bytes; },
        at::kByte);
  }
  [[nodiscard]] std::int64_t now() const { return now_; }
  [[nodiscard]] std::int64_t most() const { return most_; }

 private:
  std::int64_t now_ = 0;
  std::int64_t most_ = 0;
};

TEST_CASE("Of whole gradients at most two units are there at once, and none between steps") {
  const Case test{.grad_accum = 4};
  const param::ArenaLayout layout = layout_for(2);
  std::int64_t two_largest = 0;
  for (param::UnitId unit; unit + 1 < param::UnitId(layout.num_units()); ++unit) {
    two_largest =
        std::max(two_largest, layout.unit_range(unit).size() + layout.unit_range(unit + 1).size());
  }
  // The last unit of one microbatch and the first of the next one also follow each other.
  two_largest =
      std::max(two_largest, layout.unit_range(0_u).size() + layout.unit_range(2_u).size());
  testing::on_threads(2, [&](comm::World& world) {
    const mesh::MeshGroups groups = groups_of(world, test.num_shards);
    CountedMemory memory;
    const auto reducer = make_reducer(
        layout, groups, [&](std::int64_t bytes) { return memory.allocate(bytes); }, test);
    const std::int64_t held = memory.now();
    expect(held == 3 * layout.num_elements() / 2 * 4, "1 + log2(4) shards of float32");
    for (int round = 0; round < 2; ++round) {
      step(*reducer, layout, {.rank = world.rank(), .grad_accum = 4, .interleave = 2}, true);
      expect(memory.now() == held, "shards alone between steps");
    }
    expect(memory.most() <= held + two_largest * 4, "two units at most");
  });
}

TEST_CASE(
    "Gradients that travel in bfloat16 are still held and added over microbatches in float32") {
  testing::on_threads(2, [&](comm::World& world) {
    const param::ArenaLayout layout = layout_for(2);
    const Case test{.grad_accum = 2};
    const mesh::MeshGroups groups = groups_of(world, test.num_shards);
    const UnitSchedule schedule = schedule_of(test.grad_accum, test.keeps_shards);
    ShardReducer reducer({.layout = layout,
                          .schedule = schedule,
                          .options = {.codec = travel_in(at::kBFloat16), .num_microbatches = 2}},
                         groups, param::private_memory);
    step(reducer, layout, {.rank = world.rank(), .grad_accum = 2, .interleave = 2}, true);
    const param::ElementRange own = layout.shard_range(1_u, param::ShardId(world.rank()));
    const auto sum_of_round = [](std::int64_t round) {  // over two ranks, rounded once
      return (gradient_of(2_p, 2 * round).to(at::kBFloat16).to(at::kFloat) +
              gradient_of(2_p, 2 * round + 1).to(at::kBFloat16).to(at::kFloat))
          .to(at::kBFloat16)
          .to(at::kFloat);
    };
    const at::Tensor expected = at::zeros({layout.unit_range(1_u).size()}, at::kFloat);
    expected.narrow(0, 0, count_of(2_p)).copy_(sum_of_round(0) + sum_of_round(1));
    const std::int64_t begin = own.begin - layout.unit_range(1_u).begin;
    expect(reducer.gradients().flat().scalar_type() == at::kFloat, "float32 gradients");
    expect(at::equal(reducer.gradients().slice(own), expected.narrow(0, begin, own.size())),
           "a float32 sum of bfloat16 sums");
  });
}

}  // namespace
}  // namespace dtrain::parallel::sharded_reducers_test
