// A block that brings its own backward beside the same block under autograd.
#include <ATen/ATen.h>

#include <catch2/catch.hpp>

#include "dtrain/parallel/engine/step_engine.h"
#include "support/engine_run.h"
#include "support/local_ranks.h"
#include "support/rounding.h"
#include "support/small_blocks.h"
#include "support/values.h"

namespace dtrain::parallel::native_backward_test {
namespace {

using testing::same_bits;

struct Layout {
  std::int64_t dp = 1;
  std::int64_t grad_accum = 4;
  DataPlan data = {};
  RecomputePlan recompute = {};
  std::vector<param::ParameterId> frozen = {};
};

// Gradients of one step of embedding, three blocks and head, in float64; of each rank.
std::vector<at::Tensor> gradients_of(const std::vector<bool>& is_native, const Layout& layout) {
  std::vector<at::Tensor> gradients(static_cast<std::size_t>(layout.dp));
  testing::on_threads(layout.dp, [&](comm::World& world) {
    const mesh::MeshGroups groups(world, mesh::DeviceMesh({{mesh::Axis::dp, layout.dp}}),
                                  {.shard_size = layout.data.shard_size});
    std::vector<testing::BlockWatch> watches;
    for (const bool native : is_native) watches.push_back({.is_native = native});
    const auto model = testing::small_model(watches);
    EngineOptions options{.precision = {at::kDouble, at::kDouble, at::kDouble},
                          .grad_accum_steps = layout.grad_accum,
                          .seed = 3,
                          .data = layout.data,
                          .optimizer = {},
                          .frozen = layout.frozen,
                          .recompute = layout.recompute};
    StepEngine engine(*model, world, groups, options);
    std::vector<data::Batch> batches;
    for (const auto id : base::first_ids<MicrobatchId>(layout.grad_accum)) {
      const std::int64_t number = engine.deal().number_of(id);
      batches.push_back(testing::small_batch(number * 2));
    }
    engine.forward_backward(batches);
    at::Tensor& mine = gradients[static_cast<std::size_t>(world.rank())];
    std::vector<at::Tensor> all;
    engine.visit_gradients([&](param::ParameterId, const at::Tensor& value) {
      all.push_back(value.clone().view(-1));
    });
    mine = at::cat(all);
  });
  return gradients;
}

// Three blocks and a head, forward and backward, each a product of up to 16 terms and a tangent, and
// a sum over the vocabulary of 16; on both sides.
const double kRounding = testing::rounding_bound(at::kDouble, 2 * (2 * 4 * (16 + 2) + 16));

TEST_CASE("A native backward gives autograd's gradients, beside blocks of either kind") {
  const at::Tensor expected = gradients_of({false, false, false}, {}).front();
  for (const std::vector<bool>& kinds :
       {std::vector<bool>{true, true, true}, {true, false, true}, {false, true, false}}) {
    const at::Tensor found = gradients_of(kinds, {}).front();
    CHECK(testing::largest_error(found, expected) < kRounding);
  }
}

TEST_CASE("A native backward gives the same bits under every data axis and recomputed") {
  const std::vector<bool> kinds{true, false, true};
  const at::Tensor expected = gradients_of(kinds, {}).front();
  const std::vector<model::BlockRange> levels{{model::BlockId(1), model::BlockId(4)}};
  const std::vector<Layout> layouts{
      {.dp = 4, .grad_accum = 1},
      {.dp = 2, .grad_accum = 2},
      {.dp = 2, .grad_accum = 2, .data = {.shard_size = 2, .wrap = {}, .schedule = {}}},
      {.dp = 1, .grad_accum = 4, .recompute = recompute_in_groups(levels, 1)},
      {.dp = 1, .grad_accum = 4, .recompute = recompute_in_groups(levels, 3)}};
  for (const Layout& layout : layouts) {
    for (const at::Tensor& found : gradients_of(kinds, layout)) CHECK(same_bits(found, expected));
  }
}

TEST_CASE("A native backward is told which parameters are frozen") {
  const std::vector<param::ParameterId> frozen{param::ParameterId(1)};
  const at::Tensor expected = gradients_of({false, false, false}, {.frozen = frozen}).front();
  const at::Tensor found = gradients_of({true, true, true}, {.frozen = frozen}).front();
  CHECK(testing::largest_error(found, expected) < kRounding);
}

}  // namespace
}  // namespace dtrain::parallel::native_backward_test
