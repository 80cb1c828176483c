#include "dtrain/parallel/recompute.h"

#include <catch2/catch.hpp>
#include <string>

#include "dtrain/parallel/engine/block_runner.h"
#include "support/action_ids.h"
#include "support/small_blocks.h"

namespace dtrain::parallel::recompute_test {
namespace {

using testing::operator""_b;
using testing::operator""_m;

// The levels of a whole model of so many blocks.
std::vector<model::BlockRange> levels_of(std::int64_t num_blocks) {
  return {{1_b, model::BlockId(num_blocks - 1)}};
}

TEST_CASE("Levels run again alone or in groups; the first and the last block never do") {
  using Groups = std::vector<RecomputeGroup>;
  CHECK(recompute_lowest_levels(levels_of(7), 0).groups.empty());
  CHECK((recompute_lowest_levels(levels_of(7), 2).groups == Groups{{1_b, 2_b}, {2_b, 3_b}}));
  CHECK(recompute_lowest_levels(levels_of(7), 5) == recompute_in_groups(levels_of(7), 1));
  CHECK(
      (recompute_in_groups(levels_of(7), 2).groups == Groups{{1_b, 3_b}, {3_b, 5_b}, {5_b, 6_b}}));
  CHECK((recompute_in_groups(levels_of(7), 9).groups == Groups{{1_b, 6_b}}));
  CHECK(recompute_in_groups(levels_of(7), 2).group_of(4_b)->begin == 3_b);
  CHECK(recompute_in_groups(levels_of(7), 2).group_of(6_b) == nullptr);
  CHECK(recompute_in_groups(levels_of(7), 2).group_of(0_b) == nullptr);
}

TEST_CASE("Groups do not go beyond the runs of levels that a stage computes") {
  using Groups = std::vector<RecomputeGroup>;
  const std::vector<model::BlockRange> runs{{1_b, 4_b}, {4_b, 6_b}};
  CHECK((recompute_in_groups(runs, 2).groups == Groups{{1_b, 3_b}, {3_b, 4_b}, {4_b, 6_b}}));
  CHECK((recompute_lowest_levels(runs, 4).groups ==
         Groups{{1_b, 2_b}, {2_b, 3_b}, {3_b, 4_b}, {4_b, 5_b}}));
}

// Forgets what it is given.
class NoGradients final : public param::GradientMemory {
 public:
  explicit NoGradients(const param::ParameterViews& parameters) : parameters_(parameters) {}
  param::GradientPlace gradient_of(param::ParameterId id) override {
    return {.view = at::empty_like(parameters_[id]), .is_first = true};
  }

 private:
  const param::ParameterViews& parameters_;
};

// The order in which blocks run forward (a, b, ...) and backward (A, B, ...).
std::string trace_of(std::int64_t num_levels, const RecomputePlan& plan) {
  std::string trace;
  std::vector<testing::BlockWatch> watches;
  for (std::int64_t level = 0; level < num_levels; ++level) {
    watches.push_back({.on_forward = [&, level] { trace += static_cast<char>('a' + level); },
                       .on_backward = [&, level] { trace += static_cast<char>('A' + level); }});
  }
  const auto model = testing::small_model(watches);
  param::ParameterViews parameters;
  for (const auto& spec : model->parameters) parameters.push_back(at::ones(spec.shape) * 0.1);
  NoGradients gradients(parameters);
  model::TensorAxis axis;
  BlockRunner runner(*model, parameters, gradients, axis, {.frozen = {}, .recompute = plan});
  const data::Batch batch = testing::small_batch(0);
  const auto tokens = [](std::vector<std::int64_t> values) {
    return at::tensor(values, at::kLong).view({2, 5});
  };
  runner.begin(0_m, {.ids = tokens(batch.inputs), .targets = tokens(batch.targets)});
  for (const BlockId block : model->blocks.ids()) (void)runner.forward(block, 0_m);
  trace += ' ';
  for (BlockId block = model->blocks.end_id(); block > 0_b;) {
    runner.backward(--block, 0_m, 1.0, [](param::ParameterId) {});
  }
  return trace;
}

TEST_CASE("Each block that runs again does so right before its backward, a group from its input") {
  CHECK(trace_of(3, {}) == "abc CBA");
  CHECK(trace_of(3, recompute_lowest_levels(levels_of(5), 2)) == "abc CbBaA");
  CHECK(trace_of(3, recompute_in_groups(levels_of(5), 1)) == "abc cCbBaA");
  CHECK(trace_of(4, recompute_in_groups(levels_of(6), 2)) == "abcd cdDcCabBaA");
  CHECK(trace_of(3, recompute_in_groups(levels_of(5), 2)) == "abc cCabBaA");
  CHECK(trace_of(4, recompute_in_groups(levels_of(6), 4)) == "abcd abcdDcCbBaA");
}

// Blocks that save 100 and put out 1; half of a backward pass comes on top.
constexpr model::BlockMemory kEnd{
    .output = 1, .saved = 10, .forward = 11, .forward_without_graph = 11, .backward = 20};
constexpr model::BlockMemory kLevel{
    .output = 1, .saved = 100, .forward = 120, .forward_without_graph = 60, .backward = 150};

MemoryPlan memory_of(const RecomputePlan& plan) {
  const base::IndexedVector<BlockId, model::BlockMemory> blocks{kEnd,   kLevel, kLevel,
                                                                kLevel, kLevel, kEnd};
  return BlockRunner::memory(blocks, sequential_actions(6, 1), plan);
}

TEST_CASE("Graphs are kept from forward to backward, and a level's backward comes on top") {
  const MemoryPlan none = memory_of({});
  CHECK(none.activations == 2 * 11 + 4 * 101);
  // The last level's backward: of the head its losses are left, its input's gradient is there.
  CHECK(none.activations + none.work == 11 + 4 * 101 + 1 + 1 + 50);
}

TEST_CASE("A level that runs again keeps its input, and one graph is there at a time") {
  const MemoryPlan level = memory_of(recompute_in_groups(levels_of(6), 1));
  CHECK(level.activations == 2 * 11 + 4);
  CHECK(level.activations + level.work == 11 + 3 + 1 + 1 + (1 + 100) + 50);
  const MemoryPlan pairs = memory_of(recompute_in_groups(levels_of(6), 2));
  CHECK(pairs.activations == 2 * 11 + 2);
  CHECK(pairs.activations + pairs.work == level.activations + level.work - 1);
}

TEST_CASE("Leaving out the lowest levels' graphs lowers the peak by a graph each") {
  const std::int64_t none = memory_of({}).activations + memory_of({}).work;
  for (const std::int64_t count : {1, 2, 3}) {
    const MemoryPlan some = memory_of(recompute_lowest_levels(levels_of(6), count));
    CHECK(some.activations + some.work == none - 100 * count);
  }
}

TEST_CASE("Graphs of several microbatches count until each one's backward") {
  const base::IndexedVector<BlockId, model::BlockMemory> blocks{kEnd, kLevel};
  std::vector<Action> actions;  // two forward, then two back
  for (const MicrobatchId microbatch : {0_m, 1_m}) {
    for (const BlockId block : {0_b, 1_b}) {
      actions.push_back({ActionKind::forward, block, microbatch});
    }
  }
  for (const MicrobatchId microbatch : {0_m, 1_m}) {
    for (const BlockId block : {1_b, 0_b}) {
      actions.push_back({ActionKind::backward, block, microbatch});
    }
  }
  CHECK(BlockRunner::memory(blocks, actions, {}).activations == 2 * (11 + 101));
}

TEST_CASE("A stage keeps what it received, and not what it has sent") {
  const base::IndexedVector<BlockId, model::BlockMemory> blocks{kLevel, kLevel};
  const std::vector<Action> actions{
      {ActionKind::recv_activation, 0_b, 0_m}, {ActionKind::forward, 0_b, 0_m},
      {ActionKind::forward, 1_b, 0_m},         {ActionKind::send_activation, 1_b, 0_m},
      {ActionKind::recv_activation, 0_b, 1_m}, {ActionKind::forward, 0_b, 1_m},
      {ActionKind::forward, 1_b, 1_m},         {ActionKind::send_activation, 1_b, 1_m}};
  const RecomputePlan both{.groups = {{0_b, 2_b}}};
  const ReceivedInputs received{.blocks = {0_b}, .bytes = 7};
  // The inputs of two microbatches, and the output that the second has not yet sent.
  CHECK(BlockRunner::memory(blocks, actions, both, received).activations == 2 * 7 + 1);
  CHECK(BlockRunner::memory(blocks, actions, {}, received).activations == 2 * (7 + 2 * 101));
}

}  // namespace
}  // namespace dtrain::parallel::recompute_test
