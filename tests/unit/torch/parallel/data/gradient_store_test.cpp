#include "dtrain/parallel/data/internal/gradient_store.h"

#include <ATen/ATen.h>

#include <catch2/catch.hpp>

#include "dtrain/base/error.h"
#include "support/oracles/rounding.h"
#include "unit/torch/parallel/data/small_units.h"

namespace dtrain::parallel::gradient_store_test {
namespace {

const param::ParameterSpecs kSpecs{spec("a", 200), spec("b", 70)};
const param::ArenaLayout kLayout(kSpecs);

// One step in which microbatch m gives parameter 0 the numbers values_of(m).
at::Tensor sum_of(GradientStore& store, std::int64_t count) {
  for (std::int64_t m = 0; m < count; ++m) {
    store.begin_microbatch(data::MicrobatchId(m));
    store.add_gradient(0_p, values_of(m, 200, at::kFloat));
    store.mark_gradient_ready(0_p);
    store.mark_gradient_ready(1_p);
    if (m + 1 < count) store.end_microbatch();
  }
  store.finish({0, kLayout.num_elements()});
  return store.gradients().view(0_p);
}

TEST_CASE("Microbatches are added in tree order, step after step") {
  for (const std::int64_t count : {1, 2, 3, 4, 5, 6, 7, 8, 12, 16}) {
    GradientStore store(kLayout, at::kFloat, param::private_memory, count,
                        comm::Reduction::ordered);
    const at::Tensor expected = testing::tree_sum(0, count, 200, at::kFloat);
    for (int step = 0; step < 3; ++step) {
      INFO(count << " microbatches, step " << step);
      CHECK(same_bits(sum_of(store, count), expected));
      CHECK(store.gradients().view(1_p).abs().max().item<float>() == 0);
    }
  }
  // The order matters: left to right gives different bits.
  at::Tensor left_to_right = values_of(0, 200, at::kFloat);
  for (std::int64_t m = 1; m < 8; ++m) left_to_right.add_(values_of(m, 200, at::kFloat));
  CHECK_FALSE(same_bits(left_to_right, testing::tree_sum(0, 8, 200, at::kFloat)));
}

TEST_CASE("The tree takes one spare arena for each level, fast reduction takes none") {
  const auto arenas = [](std::int64_t count, comm::Reduction reduction) {
    return GradientStore::arenas_for(count, reduction);
  };
  CHECK(arenas(1, comm::Reduction::ordered) == 1);
  CHECK(arenas(2, comm::Reduction::ordered) == 2);
  CHECK(arenas(4, comm::Reduction::ordered) == 3);
  CHECK(arenas(8, comm::Reduction::ordered) == 4);
  CHECK(arenas(3, comm::Reduction::ordered) == 2);
  CHECK(arenas(8, comm::Reduction::fast) == 1);
}

TEST_CASE("A parameter without a gradient counts as zero, not as its last gradient") {
  const auto reduction = GENERATE(comm::Reduction::ordered, comm::Reduction::fast);
  GradientStore store(kLayout, at::kFloat, param::private_memory, 2, reduction);
  (void)sum_of(store, 2);
  for (std::int64_t m = 0; m < 2; ++m) {
    store.begin_microbatch(data::MicrobatchId(m));
    if (m == 1) store.add_gradient(0_p, values_of(5, 200, at::kFloat));
    store.mark_gradient_ready(0_p);
    store.mark_gradient_ready(1_p);
    if (m == 0) store.end_microbatch();
  }
  store.finish({0, kLayout.num_elements()});
  CHECK(at::equal(store.gradients().view(0_p), values_of(5, 200, at::kFloat)));
}

TEST_CASE("An aborted step does not affect the next one") {
  GradientStore store(kLayout, at::kFloat, param::private_memory, 4, comm::Reduction::ordered);
  for (std::int64_t m = 0; m < 3; ++m) {
    store.begin_microbatch(data::MicrobatchId(m));
    store.add_gradient(0_p, values_of(40 + m, 200, at::kFloat));
    store.mark_gradient_ready(1_p);
    store.end_microbatch();
  }
  CHECK(same_bits(sum_of(store, 4), testing::tree_sum(0, 4, 200, at::kFloat)));
}

TEST_CASE("Finishing before the last microbatch is detected as a defect") {
  GradientStore store(kLayout, at::kFloat, param::private_memory, 2, comm::Reduction::ordered);
  store.begin_microbatch(0_m);
  CHECK_THROWS_AS(store.finish({0, 64}), base::Error);
  store.end_microbatch();
  store.begin_microbatch(1_m);
  CHECK_THROWS_AS(store.end_microbatch(), base::Error);
}

}  // namespace
}  // namespace dtrain::parallel::gradient_store_test
