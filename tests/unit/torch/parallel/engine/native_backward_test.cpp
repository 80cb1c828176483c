// Compares a block with a native backward with the same block under autograd.
#include <ATen/ATen.h>

#include <catch2/catch.hpp>

#include "dtrain/parallel/engine/step_engine.h"
#include "support/engine_run.h"
#include "support/oracles/rounding.h"
#include "support/oracles/small_blocks.h"
#include "support/ranks/local_ranks.h"

namespace dtrain::parallel::native_backward_test {
namespace {

// Gradients of one step of embedding, three blocks and head, in float64.
at::Tensor gradients_of(const std::vector<bool>& is_native) {
  std::vector<at::Tensor> gradients;
  testing::on_threads(1, [&](comm::World& world) {
    const mesh::MeshGroups groups(world, mesh::DeviceMesh({}));
    std::vector<testing::BlockWatch> watches;
    for (const bool native : is_native) watches.push_back({.is_native = native});
    const auto model = testing::small_model(watches);
    StepEngine engine(*model, world, groups,
                      {.precision = {at::kDouble, at::kDouble, at::kDouble},
                       .grad_accum_steps = 2,
                       .seed = 3,
                       .optimizer = {}});
    const std::vector<data::Batch> batches{testing::small_batch(0), testing::small_batch(2)};
    engine.forward_backward(batches);
    engine.whole_model().visit_gradients([&](param::ParameterId, const at::Tensor& value) {
      gradients.push_back(value.clone().view(-1));
    });
  });
  return at::cat(gradients);
}

// Three blocks and a head, forward and backward, each a product of up to 16 terms and a tangent, and
// a sum over the vocabulary of 16; on both sides.
const double kRounding = testing::rounding_bound(at::kDouble, 2 * (2 * 4 * (16 + 2) + 16));

TEST_CASE("A native backward gives autograd's gradients, next to blocks of either kind") {
  const at::Tensor expected = gradients_of({false, false, false});
  for (const std::vector<bool>& kinds :
       {std::vector<bool>{true, true, true}, {true, false, true}, {false, true, false}}) {
    const at::Tensor found = gradients_of(kinds);
    CHECK(testing::largest_error(found, expected) < kRounding);
  }
}

}  // namespace
}  // namespace dtrain::parallel::native_backward_test
