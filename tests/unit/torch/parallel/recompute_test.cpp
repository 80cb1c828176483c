#include "dtrain/parallel/recompute.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <string>

#include "dtrain/parallel/action.h"
#include "dtrain/parallel/engine/internal/activation_memory.h"
#include "dtrain/parallel/engine/internal/block_runner.h"
#include "support/action_ids.h"
#include "support/oracles/small_blocks.h"

namespace dtrain::parallel::recompute_test {
namespace {

using testing::operator""_b;
using testing::operator""_m;

// Returns the levels of a whole model with this many blocks.
std::vector<model::BlockRange> levels_of(std::int64_t num_blocks) {
  return {{1_b, model::BlockId(num_blocks - 1)}};
}

TEST_CASE("Levels are recomputed singly or in groups; the first and the last block never are") {
  using Groups = std::vector<RecomputeGroup>;
  CHECK(recompute_lowest_layers(levels_of(7), 0).groups.empty());
  CHECK((recompute_lowest_layers(levels_of(7), 2).groups == Groups{{1_b, 2_b}, {2_b, 3_b}}));
  CHECK(recompute_lowest_layers(levels_of(7), 5) == recompute_in_groups(levels_of(7), 1));
  CHECK(
      (recompute_in_groups(levels_of(7), 2).groups == Groups{{1_b, 3_b}, {3_b, 5_b}, {5_b, 6_b}}));
  CHECK((recompute_in_groups(levels_of(7), 9).groups == Groups{{1_b, 6_b}}));
  CHECK(recompute_in_groups(levels_of(7), 2).group_of(4_b)->begin == 3_b);
  CHECK(recompute_in_groups(levels_of(7), 2).group_of(6_b) == nullptr);
  CHECK(recompute_in_groups(levels_of(7), 2).group_of(0_b) == nullptr);
}

TEST_CASE("Groups do not cross the chunks of a stage") {
  using Groups = std::vector<RecomputeGroup>;
  const std::vector<model::BlockRange> runs{{1_b, 4_b}, {4_b, 6_b}};
  CHECK((recompute_in_groups(runs, 2).groups == Groups{{1_b, 3_b}, {3_b, 4_b}, {4_b, 6_b}}));
  CHECK((recompute_lowest_layers(runs, 4).groups ==
         Groups{{1_b, 2_b}, {2_b, 3_b}, {3_b, 4_b}, {4_b, 5_b}}));
}

// Discards gradients.
class NoGradients final : public param::GradientMemory {
 public:
  explicit NoGradients(const param::ParameterViews& parameters) : parameters_(parameters) {}
  param::GradientTarget gradient_of(param::ParameterId id) override {
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
  GradientAccumulator accumulator(*model, gradients, /*interleaved_microbatches=*/1,
                                  [](param::ParameterId) {});
  model::TensorAxis axis;
  BlockRunner runner(*model, parameters, accumulator, axis, {.frozen = {}, .recompute = plan});
  const data::Batch batch = testing::small_batch(0);
  const auto tokens = [](std::vector<std::int64_t> values) {
    return at::tensor(values, at::kLong).view({2, 5});
  };
  runner.begin(0_m, {.ids = tokens(batch.inputs), .targets = tokens(batch.targets)});
  for (const BlockId block : model->blocks.ids()) (void)runner.forward(block, 0_m);
  trace += ' ';
  for (BlockId block = model->blocks.end_id(); block > 0_b;) {
    runner.backward(--block, 0_m, 1.0);
  }
  return trace;
}

TEST_CASE("Each block is recomputed right before its backward pass, a group from its input") {
  CHECK(trace_of(3, {}) == "abc CBA");
  CHECK(trace_of(3, recompute_lowest_layers(levels_of(5), 2)) == "abc CbBaA");
  CHECK(trace_of(3, recompute_in_groups(levels_of(5), 1)) == "abc cCbBaA");
  CHECK(trace_of(4, recompute_in_groups(levels_of(6), 2)) == "abcd cdDcCabBaA");
  CHECK(trace_of(3, recompute_in_groups(levels_of(5), 2)) == "abc cCabBaA");
  CHECK(trace_of(4, recompute_in_groups(levels_of(6), 4)) == "abcd abcdDcCbBaA");
}

// Blocks that save 100 and output 1; a backward pass needs half as much on top.
constexpr model::BlockMemory kEnd{
    .output = 1, .saved = 10, .forward = 11, .forward_without_graph = 11, .backward = 20};
constexpr model::BlockMemory kLevel{
    .output = 1, .saved = 100, .forward = 120, .forward_without_graph = 60, .backward = 150};

MemoryPlan memory_of(const RecomputePlan& plan) {
  const base::IndexedVector<BlockId, model::BlockMemory> blocks{kEnd,   kLevel, kLevel,
                                                                kLevel, kLevel, kEnd};
  return activation_memory(blocks, sequential_actions(6, 1), plan);
}

TEST_CASE("Recomputing the lowest levels lowers the peak by a graph each") {
  const std::int64_t none = memory_of({}).activations + memory_of({}).work;
  for (const std::int64_t count : {1, 2, 3}) {
    const MemoryPlan some = memory_of(recompute_lowest_layers(levels_of(6), count));
    CHECK(some.activations + some.work == none - 100 * count);
  }
}

TEST_CASE("A stage keeps inputs that it received, but not outputs that it has sent") {
  const base::IndexedVector<BlockId, model::BlockMemory> blocks{kLevel, kLevel};
  const std::vector<Action> actions{
      {ActionKind::recv_activation, 0_b, 0_m}, {ActionKind::forward, 0_b, 0_m},
      {ActionKind::forward, 1_b, 0_m},         {ActionKind::send_activation, 1_b, 0_m},
      {ActionKind::recv_activation, 0_b, 1_m}, {ActionKind::forward, 0_b, 1_m},
      {ActionKind::forward, 1_b, 1_m},         {ActionKind::send_activation, 1_b, 1_m}};
  const RecomputePlan both{.groups = {{0_b, 2_b}}};
  const ReceivedInputs received{.blocks = {0_b}, .bytes = 7};
  // The inputs of two microbatches, and the output that the second has not yet sent.
  CHECK(activation_memory(blocks, actions, both, received).activations == 2 * 7 + 1);
  CHECK(activation_memory(blocks, actions, {}, received).activations == 2 * (7 + 2 * 101));
}

// One letter and a microbatch for each action; small letters are events.
std::string text_of(const std::vector<Action>& actions) {
  std::string text;
  for (const Action& action : actions) {
    const char letter = "FBSRSRbeghl"[static_cast<int>(action.kind)];
    text += fmt::format("{}{}{}", text.empty() ? "" : " ", letter, action.microbatch.value());
  }
  return text;
}

TEST_CASE("Each microbatch has its own gradient sum, and only the last one has no end action") {
  const std::vector<Action> step = with_events(sequential_actions(2, 3));
  CHECK(text_of(step) ==
        "b0 F0 F0 g0 B0 B0 h0 e0 "
        "b1 F1 F1 g1 B1 B1 h1 e1 "
        "b2 F2 F2 l2 g2 B2 B2 e2");
  CHECK(num_gradient_sums(step) == 3);
}

TEST_CASE("A microbatch lives from its first message to its last") {
  const std::vector<Action> stage{
      {ActionKind::recv_activation, 0_b, 0_m}, {ActionKind::recv_activation, 0_b, 1_m},
      {ActionKind::forward, 0_b, 0_m},         {ActionKind::forward, 0_b, 1_m},
      {ActionKind::backward, 0_b, 0_m},        {ActionKind::send_gradient, 0_b, 0_m},
      {ActionKind::backward, 0_b, 1_m},        {ActionKind::send_gradient, 0_b, 1_m}};
  CHECK(text_of(with_events(stage)) == "b0 R0 b1 R1 F0 F1 l1 g0 B0 h0 S0 e0 g1 B1 S1 e1");
}

TEST_CASE("Alternating backward passes of several microbatches share one gradient sum") {
  std::vector<Action> stage;  // two chunks of one block
  for (const BlockId block : {0_b, 1_b}) {
    for (const MicrobatchId microbatch : {0_m, 1_m}) {
      stage.push_back({ActionKind::forward, block, microbatch});
    }
  }
  for (const BlockId block : {1_b, 0_b}) {
    for (const MicrobatchId microbatch : {0_m, 1_m}) {
      stage.push_back({ActionKind::backward, block, microbatch});
    }
  }
  const std::vector<Action> step = with_events(stage);
  CHECK(text_of(step) == "b0 F0 b1 F1 F0 F1 l1 g0 B0 B1 B0 e0 B1 e1");
  CHECK(num_gradient_sums(step) == 1);
}

}  // namespace
}  // namespace dtrain::parallel::recompute_test
