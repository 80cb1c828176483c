// A BDH whose blocks are split over ranks, beside the same one whole.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "support/rounding.h"
#include "support/values.h"
#include "unit/torch/parallel/tensor/split_run.h"

namespace dtrain::parallel::split_blocks_test {
namespace {

using testing::CallCounts;
using testing::error_of;
using testing::SplitCase;
using testing::SplitResult;

constexpr std::int64_t kLevels = 3;
constexpr std::int64_t kHeads = 4;
constexpr std::array kLevelBlocks{
    model::BlockRange{model::BlockId(1), model::BlockId(kLevels + 1)}};

// Neurons of a head that are no multiple of a dropout block, so that parts start within one.
constexpr model::bdh::BdhSizes kSizes{.levels = kLevels,
                                      .width = 6,
                                      .heads = kHeads,
                                      .neurons = 12,
                                      .vocab = 16,
                                      .dropout = 0.1,
                                      .tie_levels = true};

// Length of the difference over the expected length: single gradients may jump where a rounding
// turns a ReLU on or off.
double length_error(const at::Tensor& found, const at::Tensor& expected) {
  const at::Tensor wide = expected.to(at::kDouble);
  return ((found.to(at::kDouble) - wide).norm() / wide.norm()).item<double>();
}

using Distance = double (*)(const at::Tensor&, const at::Tensor&);

// How far a part's results are from those of the whole, by what is compared.
std::map<std::string, double> errors(const SplitResult& part, const SplitResult& whole,
                                     Distance distance) {
  std::map<std::string, double> all{{"losses", distance(part.losses, whole.losses)},
                                    {"evaluated", distance(part.evaluated, whole.evaluated)}};
  for (const param::ParameterSpec& spec : part.specs) {
    const at::Tensor expected = testing::slice_of(spec, whole.gradients.at(spec.name));
    all[spec.name] = distance(part.gradients.at(spec.name), expected);
  }
  const auto tap = part.taps.find("act.layer2.out");
  if (tap != part.taps.end() && whole.taps.contains(tap->first)) {
    all[tap->first] = distance(tap->second, whole.taps.at(tap->first));
  }
  return all;
}

// Checks results in c.dtype beside a whole model in float64.
void check_near(const std::vector<SplitResult>& parts, SplitCase c, Distance distance) {
  const testing::Disturbance disturbance(c.dtype, testing::roundings_of(c, c.dtype));
  c.dtype = at::kDouble;
  const SplitResult whole = testing::run_whole(c);
  std::map<std::string, double> bounds;
  c.relative = disturbance.relative;
  for (c.draw = 1; c.draw <= testing::Disturbance::kDraws; ++c.draw) {
    for (const auto& [name, error] : errors(testing::run_whole(c), whole, distance)) {
      bounds[name] = std::max(bounds[name], error * disturbance.scale);
    }
  }
  for (const SplitResult& part : parts) {
    for (const auto& [name, error] : errors(part, whole, distance)) {
      CAPTURE(name, error);
      // A part of a gradient, too, is compared with the bound of the whole one.
      CHECK(error <= bounds.at(name));
    }
  }
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
  std::vector<SplitResult> parts = testing::run_split(c);
  for (SplitResult& part : parts) {
    CHECK(part.taps.contains("act.layer2.out"));
    if (recomputes) part.taps.clear();  // taps see a first forward with a graph alone
  }
  check_near(parts, c, error_of);
  const SplitResult whole = testing::run_whole(c);
  // Dropout is at work: training and evaluation differ.
  CHECK((error_of(whole.evaluated, whole.losses) > 1e-3) == (c.sizes.dropout > 0));
}

TEST_CASE("Split blocks of 16 bits have losses and gradients near float64's") {
  SplitCase c{.sizes = kSizes};
  c.sizes.width = 24;
  c.sizes.neurons = 68;
  c.dtype = GENERATE(at::kBFloat16, at::kHalf);
  c.tp = GENERATE(4, 8);
  c.splits_vocab = GENERATE(false, true);
  c.rounded_to = c.dtype;
  c.weight_scale = 0.25;
  CAPTURE(c.dtype, c.tp, c.splits_vocab);
  const std::vector<SplitResult> parts = testing::run_split(c);
  for (const SplitResult& part : parts) CHECK(part.losses.scalar_type() == at::kFloat);
  check_near(parts, c, length_error);
}

// float16's scores are scaled, and values whose variance is near the norm's epsilon show whether all
// ranks undo that.
TEST_CASE("The attention of split 16 bits is that of one rank") {
  SplitCase c{.sizes = kSizes};
  c.dtype = GENERATE(at::kBFloat16, at::kHalf);
  c.tp = GENERATE(2, 8);
  const std::int64_t chunk = GENERATE(0, 3);
  if (chunk > 0) {
    c.computation.attention = {.kind = config::AttentionSetting::Kind::chunked, .chunk = chunk};
  }
  c.weight_scale = 0.25;
  c.rounded_to = c.dtype;
  CAPTURE(c.dtype, c.tp, chunk);
  const at::Tensor whole = testing::run_whole(c).taps.at("act.layer0.ykv");  // (B, nh, T, D)
  // Neurons, scores, their sum over ranks and the norm round in 16 bits, each once or twice.
  const double bound = c.dtype == at::kHalf ? 8 * 0x1p-11 : 8 * 0x1p-8;
  const std::vector<SplitResult> parts = testing::run_split(c);
  for (std::size_t rank = 0; rank < parts.size(); ++rank) {
    const at::Tensor& own = parts[rank].taps.at("act.layer0.ykv");
    const std::int64_t first = static_cast<std::int64_t>(rank) * kHeads / c.tp;
    CAPTURE(rank);
    CHECK(length_error(own, whole.narrow(1, first, own.size(1))) <= bound);
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
}  // namespace dtrain::parallel::split_blocks_test
