// A BDH whose blocks are split over ranks, beside the same one whole.
#include <fmt/format.h>

#include <array>
#include <catch2/catch.hpp>
#include <cmath>

#include "support/values.h"
#include "unit/torch/parallel/tensor/split_run.h"

namespace dtrain::parallel {
namespace {

using testing::CallCounts;
using testing::error_of;
using testing::SplitCase;
using testing::SplitResult;

constexpr std::int64_t kLevels = 3;
constexpr std::int64_t kHeads = 4;
constexpr std::array kLevelBlocks{
    model::BlockRange{model::BlockId(1), model::BlockId(kLevels + 1)}};
constexpr double kTolerance = 1e-11;

// Neurons of a head that are no multiple of a dropout block, so that parts start within one.
constexpr model::bdh::BdhSizes kSizes{.levels = kLevels,
                                      .width = 6,
                                      .heads = kHeads,
                                      .neurons = 12,
                                      .vocab = 16,
                                      .dropout = 0.1,
                                      .tie_levels = true};

double largest_gradient_error(const SplitResult& part, const SplitResult& whole) {
  double largest = part.gradients.size() == whole.gradients.size() ? 0 : INFINITY;
  for (const param::ParameterSpec& spec : part.specs) {
    const at::Tensor expected = testing::slice_of(spec, whole.gradients.at(spec.name));
    largest = std::max(largest, error_of(part.gradients.at(spec.name), expected));
  }
  return largest;
}

TEST_CASE("Split blocks compute what whole blocks do: losses, outputs and every gradient") {
  SplitCase c{.sizes = kSizes};
  c.tp = GENERATE(2, 4, 8);
  c.sizes.tie_levels = GENERATE(true, false);
  c.sizes.dropout = GENERATE(0.0, 0.1);
  c.splits_vocab = GENERATE(false, true);
  const bool recomputes = GENERATE(false, true);
  if (recomputes) c.recompute = recompute_in_groups(kLevelBlocks, 1);
  CAPTURE(c.tp, c.sizes.tie_levels, c.sizes.dropout, c.splits_vocab, recomputes);
  const SplitResult whole = testing::run_whole(c);
  for (const SplitResult& part : testing::run_split(c)) {
    CHECK(error_of(part.losses, whole.losses) < kTolerance);
    CHECK(error_of(part.evaluated, whole.evaluated) < kTolerance);
    CHECK(largest_gradient_error(part, whole) < kTolerance);
    if (recomputes) continue;  // taps see a first forward with a graph alone
    CHECK(error_of(part.taps.at("act.layer2.out"), whole.taps.at("act.layer2.out")) < kTolerance);
  }
  // Dropout is at work: training and evaluation differ.
  CHECK((error_of(whole.evaluated, whole.losses) > 1e-3) == (c.sizes.dropout > 0));
}

// Length of the difference over the expected length: single gradients may jump where a rounding
// turns a ReLU on or off.
double length_error(const at::Tensor& found, const at::Tensor& expected) {
  return ((found - expected).norm() / expected.norm()).item<double>();
}

TEST_CASE("Split blocks of 16 bits have losses and gradients near float32's") {
  SplitCase c{.sizes = kSizes};
  c.sizes.width = 24;
  c.sizes.neurons = 68;
  c.dtype = GENERATE(at::kBFloat16, at::kHalf);
  c.tp = GENERATE(4, 8);
  c.splits_vocab = GENERATE(false, true);
  c.rounded_to = c.dtype;
  c.weight_scale = 0.25;
  SplitCase wide = c;
  wide.dtype = at::kFloat;
  const SplitResult expected = testing::run_whole(wide);
  const double unit = c.dtype == at::kHalf ? 0x1p-11 : 0x1p-8;
  CAPTURE(c.dtype, c.tp, c.splits_vocab);
  for (const SplitResult& part : testing::run_split(c)) {
    CHECK(part.losses.scalar_type() == at::kFloat);
    CHECK(length_error(part.losses, expected.losses) < 12 * unit);
    for (const param::ParameterSpec& spec : part.specs) {
      CAPTURE(spec.name);
      CHECK(length_error(part.gradients.at(spec.name),
                         testing::slice_of(spec, expected.gradients.at(spec.name))) < 80 * unit);
    }
  }
}

TEST_CASE("Ranks end with the same bits where they hold the same") {
  SplitCase c{.sizes = kSizes};
  c.tp = GENERATE(4, 8);
  const std::vector<SplitResult> parts = testing::run_split(c);
  for (const SplitResult& part : parts) {
    CHECK(testing::same_bits(part.losses, parts[0].losses));
    for (const std::string name : {"embed.weight", "lm_head"}) {
      CHECK(testing::same_bits(part.gradients.at(name), parts[0].gradients.at(name)));
    }
  }
}

std::string all_reduce(std::int64_t count) { return fmt::format("all_reduce of {} Double", count); }

TEST_CASE("What is sent is an activation a level each way, and nothing else") {
  constexpr std::int64_t kTokens = 14;
  constexpr std::int64_t kActivation = kTokens * 6;
  SplitCase c{.sizes = kSizes};
  c.tp = GENERATE(2, 4, 8);
  c.splits_vocab = GENERATE(false, true);
  const bool recomputes = GENERATE(false, true);
  if (recomputes) c.recompute = recompute_in_groups(kLevelBlocks, 1);
  CallCounts axis{{all_reduce(kActivation), (recomputes ? 3 : 2) * kLevels}};
  if (c.splits_vocab) {
    axis[all_reduce(kActivation)] += 2;       // embedding forward, output matrix backward
    axis["all_reduce max of 14 Double"] = 1;  // largest logits
    axis[all_reduce(2 * kTokens)] = 1;        // sums of exponentials and the targets' logits
  }
  CallCounts head;
  if (c.tp > kHeads) head[all_reduce(kActivation)] = (recomputes ? 3 : 2) * kLevels;
  CAPTURE(c.tp, c.splits_vocab, recomputes);
  for (const SplitResult& part : testing::run_split(c)) {
    CHECK(part.axis_calls == axis);
    CHECK(part.head_calls == head);
  }
}

TEST_CASE("A rank holds its slice of what is split, and all of the rest") {
  SplitCase c{.sizes = kSizes};
  c.tp = GENERATE(2, 8);
  c.splits_vocab = GENERATE(false, true);
  const std::int64_t split = 3 * 4 * 12 * 6;
  const std::int64_t vocabulary = 2 * 16 * 6;
  for (const SplitResult& part : testing::run_split(c)) {
    std::int64_t held = 0;
    for (const param::ParameterSpec& spec : part.specs) held += spec.num_elements();
    CHECK(held == split / c.tp + vocabulary / (c.splits_vocab ? c.tp : 1));
    for (const auto& [name, gradient] : part.gradients) held -= gradient.numel();
    CHECK(held == 0);
  }
}

}  // namespace
}  // namespace dtrain::parallel
