// Properties of every compression scheme: nothing is lost, costs match the prediction, steps
// without an update change nothing.
#include <ATen/ATen.h>

#include <catch2/catch.hpp>
#include <limits>
#include <string>

#include "dtrain/parallel/compress/all_reducer.h"
#include "support/ids.h"
#include "support/oracles/rounding.h"
#include "support/ranks/local_ranks.h"
#include "support/values.h"

namespace dtrain::parallel::compressed_all_reducer_test {
namespace {

using testing::expect;
using testing::rounding_bound;
using testing::same_bits;
using testing::values_of;

constexpr std::int64_t kRanks = 2;

param::ParameterSpecs specs() {
  return {testing::spec("small", 50), testing::matrix("matrix", 80, 40)};
}

Compression compression_of(const std::string& scheme) {
  return {.scheme = config::Compression::parse(scheme).value(), .min_elements = 100};
}

AllReducerSetup setup_of(const param::ArenaLayout& layout, const std::string& scheme,
                         at::ScalarType dtype) {
  return {.layout = layout,
          .compression = compression_of(scheme),
          .dtype = dtype,
          .codec = dtype_codec(dtype)};
}

at::Tensor gradients_of(const param::ArenaLayout& layout, std::int64_t rank, std::int64_t step,
                        at::ScalarType dtype) {
  param::Arena arena(layout, dtype, param::private_memory);
  for (const param::ParameterId id : layout.parameters()) {
    arena.view(id).view(-1).copy_(
        values_of(rank + 7 * step + id.value(), layout.range(id).size(), dtype));
  }
  return arena.flat() / 64;  // float16 holds their sums
}

at::Tensor summed(CompressedAllReducer& sums, at::Tensor gradients,
                  const StepReduceOptions& options, bool has_updated) {
  sums.begin_step(options);
  sums.begin({0, gradients.numel()}, gradients);
  sums.finish();
  sums.end_step(has_updated);
  return gradients;
}

TEST_CASE("Applied sums and residuals add up to all gradients") {
  const std::string scheme = GENERATE("bf16", "fp16", "topk:0.02", "powersgd:2");
  CAPTURE(scheme);
  const param::ArenaLayout layout(specs());
  std::array<at::Tensor, kRanks> left;
  std::array<at::Tensor, kRanks> applied;
  testing::on_threads(kRanks, [&](comm::World& world) {
    CompressedAllReducer sums(setup_of(layout, scheme, at::kDouble), world.control(),
                              param::private_memory);
    at::Tensor all = at::zeros({layout.num_elements()}, at::kDouble);
    for (std::int64_t step = 0; step < 5; ++step) {
      const StepReduceOptions options{.compresses = step != 1};  // one step is uncompressed
      all += summed(sums, gradients_of(layout, world.rank(), step, at::kDouble), options, true);
    }
    const auto rank = static_cast<std::size_t>(world.rank());
    applied[rank] = all;
    left[rank] = sums.error_feedback().residuals->flat().clone();
  });
  CHECK(same_bits(applied[0], applied[1]));
  at::Tensor expected = at::zeros({layout.num_elements()}, at::kDouble);
  double lengths = 0;
  for (std::int64_t step = 0; step < 5; ++step) {
    for (std::int64_t rank = 0; rank < kRanks; ++rank) {
      const at::Tensor gradients = gradients_of(layout, rank, step, at::kDouble);
      expected += gradients;
      lengths += gradients.norm().item<double>();
    }
  }
  // 16-bit sums of two ranks are rounded once more, including earlier residuals. Other schemes add
  // what is sent and what is not, each a product of rank two at most, to ten gradients.
  const double bound = scheme == "bf16"   ? rounding_bound(at::kBFloat16, 2)
                       : scheme == "fp16" ? rounding_bound(at::kHalf, 2)
                                          : rounding_bound(at::kDouble, 10 * (2 * 2 + 3));
  const at::Tensor found = applied[0] + left[0] + left[1];
  CHECK((found - expected).norm().item<double>() <= bound * lengths);
  CHECK((left[0].norm() > 0).item<bool>());
}

TEST_CASE("A step without an update leaves the error-feedback state unchanged") {
  const std::string scheme = GENERATE("bf16", "fp16", "topk:0.02", "powersgd:2");
  const float bad = GENERATE(1.0F, std::numeric_limits<float>::infinity(),
                             std::numeric_limits<float>::quiet_NaN());
  const param::ArenaLayout layout(specs());
  testing::on_threads(kRanks, [&](comm::World& world) {
    CompressedAllReducer sums(setup_of(layout, scheme, at::kFloat), world.control(),
                              param::private_memory);
    const auto gradients = [&](std::int64_t step) {
      return gradients_of(layout, world.rank(), step, at::kFloat);
    };
    (void)summed(sums, gradients(0), {}, true);
    const ErrorFeedbackState before = sums.error_feedback();
    const at::Tensor residual = before.residuals->flat().clone();
    at::Tensor spike = gradients(1) * 1e4;
    if (world.rank() == 1) spike[layout.range(param::ParameterId(1)).begin + 3] = bad;
    const at::Tensor sum = summed(sums, spike, {}, false);
    expect(at::isfinite(sum).all().item<bool>() == std::isfinite(bad) || scheme == "fp16",
           "what is no number reaches every rank");
    expect(same_bits(sums.error_feedback().residuals->flat(), residual), "the residual of before");
    const at::Tensor again = summed(sums, gradients(2), {}, true);
    expect(at::isfinite(again).all().item<bool>(), "numbers once more");
  });
}

TEST_CASE("The residual of a part that is now uncompressed is sent once, with an update") {
  const param::ArenaLayout layout(specs());
  testing::on_threads(kRanks, [&](comm::World& world) {
    CompressedAllReducer sums(setup_of(layout, "topk:0.02", at::kDouble), world.control(),
                              param::private_memory);
    const at::Tensor residual = gradients_of(layout, world.rank(), 9, at::kDouble);
    sums.error_feedback().residuals->flat().copy_(residual);
    const at::Tensor owed = residual.clone();
    world.control().all_reduce(owed).wait();
    const auto sent_whole = [&](bool has_updated) {
      const at::Tensor gradients = gradients_of(layout, world.rank(), 0, at::kDouble);
      const at::Tensor plain = gradients.clone();
      world.control().all_reduce(plain).wait();
      const StepReduceOptions options{.compresses = false, .loss_scale = 4};
      return summed(sums, gradients, options, has_updated) - plain;
    };
    expect(at::allclose(sent_whole(false), 4 * owed), "what is owed");
    expect(at::allclose(sent_whole(true), 4 * owed), "again, since it was not applied");
    expect(same_bits(sent_whole(true), at::zeros_like(owed)), "once");
    expect(sums.report()->residual_norm == 0, "nothing is left");
  });
}

TEST_CASE("A power-of-two loss scale changes no bit") {
  const std::string scheme = GENERATE("bf16", "topk:0.02");
  const param::ArenaLayout layout(specs());
  testing::on_threads(kRanks, [&](comm::World& world) {
    std::vector<at::Tensor> last;
    for (const bool is_scaled : {false, true}) {
      CompressedAllReducer sums(setup_of(layout, scheme, at::kFloat), world.control(),
                                param::private_memory);
      at::Tensor sum;
      for (std::int64_t step = 0; step < 4; ++step) {
        const double scale = is_scaled ? std::exp2(10 - 2 * step) : 1;
        const at::Tensor own = gradients_of(layout, world.rank(), step, at::kFloat) * scale;
        sum = summed(sums, own, {.loss_scale = scale}, true) / scale;
      }
      last.push_back(sum);
    }
    expect(same_bits(last[0], last[1]), "the same sums");
  });
}

TEST_CASE("Memory and traffic of schemes match their predictions") {
  const std::string scheme = GENERATE("bf16", "topk:0.02", "powersgd:2");
  const param::ArenaLayout layout(specs());
  const AllReducerSetup setup = setup_of(layout, scheme, at::kFloat);
  const MemoryPlan memory = CompressedAllReducer::memory(setup, kRanks);
  const SchemeCosts costs = CompressedAllReducer::costs(setup, kRanks);
  testing::on_threads(kRanks, [&](comm::World& world) {
    std::int64_t held = 0;
    CompressedAllReducer sums(setup, world.control(), [&](std::int64_t bytes) {
      held += bytes;
      return param::private_memory(bytes);
    });
    const auto drawn_at_first = scheme == "powersgd:2" ? 40 * 2 * 4 : 0;
    expect(held == memory.gradients + memory.buffers - drawn_at_first, "memory");
    const auto before = world.control().calls().counters();
    (void)summed(sums, gradients_of(layout, world.rank(), 0, at::kFloat), {}, true);
    const auto after = world.control().calls().counters();
    expect(after.calls - before.calls == costs.calls, "calls");
    expect(after.bytes_sent - before.bytes_sent == costs.sent, "bytes");
    const CompressionReport report = sums.report().value();
    expect(report.bytes_sent == costs.sent, "bytes that are reported");
    // Two sums of squares, a root each.
    const double rounding =
        rounding_bound(at::kDouble, static_cast<double>(2 * (layout.num_elements() + 2)));
    const double norm =
        sums.error_feedback().residuals->flat().to(at::kDouble).norm().item<double>();
    expect(norm > 0 && std::abs(report.residual_norm / norm - 1) <= rounding,
           "the residual's norm");
  });
}

}  // namespace
}  // namespace dtrain::parallel::compressed_all_reducer_test
