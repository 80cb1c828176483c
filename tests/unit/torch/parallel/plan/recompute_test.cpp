#include "dtrain/parallel/plan/recompute.h"

#include <catch2/catch.hpp>
#include <string>

#include "dtrain/parallel/engine/block_runner.h"
#include "support/small_blocks.h"

namespace dtrain::parallel {
namespace {

// The levels of a whole model of so many blocks.
std::vector<model::BlockRange> levels_of(std::int64_t num_blocks) { return {{1, num_blocks - 1}}; }

TEST_CASE("Levels run again alone or in groups; the first and the last block never do") {
  using Groups = std::vector<RecomputeGroup>;
  CHECK(recompute_lowest_levels(levels_of(7), 0).groups.empty());
  CHECK((recompute_lowest_levels(levels_of(7), 2).groups == Groups{{1, 2}, {2, 3}}));
  CHECK(recompute_lowest_levels(levels_of(7), 5) == recompute_in_groups(levels_of(7), 1));
  CHECK((recompute_in_groups(levels_of(7), 2).groups == Groups{{1, 3}, {3, 5}, {5, 6}}));
  CHECK((recompute_in_groups(levels_of(7), 9).groups == Groups{{1, 6}}));
  CHECK(recompute_in_groups(levels_of(7), 2).group_of(4)->begin == 3);
  CHECK(recompute_in_groups(levels_of(7), 2).group_of(6) == nullptr);
  CHECK(recompute_in_groups(levels_of(7), 2).group_of(0) == nullptr);
}

TEST_CASE("Groups do not go beyond the runs of levels that a stage computes") {
  using Groups = std::vector<RecomputeGroup>;
  const std::vector<model::BlockRange> runs{{1, 4}, {4, 6}};
  CHECK((recompute_in_groups(runs, 2).groups == Groups{{1, 3}, {3, 4}, {4, 6}}));
  CHECK((recompute_lowest_levels(runs, 4).groups == Groups{{1, 2}, {2, 3}, {3, 4}, {4, 5}}));
}

// Forgets what it is given.
class NoGradients final : public param::GradientMemory {
 public:
  explicit NoGradients(const std::vector<at::Tensor>& parameters) : parameters_(parameters) {}
  param::GradientPlace gradient_of(param::ParameterId id) override {
    return {.view = at::empty_like(parameters_[static_cast<std::size_t>(id)]), .is_first = true};
  }

 private:
  const std::vector<at::Tensor>& parameters_;
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
  std::vector<at::Tensor> parameters;
  for (const auto& spec : model->parameters) parameters.push_back(at::ones(spec.shape) * 0.1);
  NoGradients gradients(parameters);
  model::TensorAxis axis;
  BlockRunner runner(*model, parameters, gradients, axis, {.frozen = {}, .recompute = plan});
  const data::Batch batch = testing::small_batch(0);
  const auto tokens = [](std::vector<std::int64_t> values) {
    return at::tensor(values, at::kLong).view({2, 5});
  };
  runner.begin(0, {.ids = tokens(batch.inputs), .targets = tokens(batch.targets)});
  for (std::int64_t block = 0; block < num_levels + 2; ++block) (void)runner.forward(block, 0);
  trace += ' ';
  for (std::int64_t block = num_levels + 1; block >= 0; --block) {
    runner.backward(block, 0, 1.0, [](param::ParameterId) {});
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
  const std::vector<model::BlockMemory> blocks{kEnd, kLevel, kLevel, kLevel, kLevel, kEnd};
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
  const std::vector<model::BlockMemory> blocks{kEnd, kLevel};
  std::vector<Action> actions;  // two forward, then two back
  for (const std::int64_t microbatch : {0, 1}) {
    for (const std::int64_t block : {0, 1}) {
      actions.push_back({ActionKind::forward, block, microbatch});
    }
  }
  for (const std::int64_t microbatch : {0, 1}) {
    for (const std::int64_t block : {1, 0}) {
      actions.push_back({ActionKind::backward, block, microbatch});
    }
  }
  CHECK(BlockRunner::memory(blocks, actions, {}).activations == 2 * (11 + 101));
}

TEST_CASE("A stage keeps what it received, and not what it has sent") {
  const std::vector<model::BlockMemory> blocks{kLevel, kLevel};
  const std::vector<Action> actions{
      {ActionKind::recv_activation, 0, 0}, {ActionKind::forward, 0, 0},
      {ActionKind::forward, 1, 0},         {ActionKind::send_activation, 1, 0},
      {ActionKind::recv_activation, 0, 1}, {ActionKind::forward, 0, 1},
      {ActionKind::forward, 1, 1},         {ActionKind::send_activation, 1, 1}};
  const RecomputePlan both{.groups = {{0, 2}}};
  const ReceivedInputs received{.blocks = {0}, .bytes = 7};
  // The inputs of two microbatches, and the output that the second has not yet sent.
  CHECK(BlockRunner::memory(blocks, actions, both, received).activations == 2 * 7 + 1);
  CHECK(BlockRunner::memory(blocks, actions, {}, received).activations == 2 * (7 + 2 * 101));
}

}  // namespace
}  // namespace dtrain::parallel
