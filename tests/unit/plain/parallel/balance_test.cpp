#include "dtrain/parallel/pipeline/balance.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <functional>
#include <random>

#include "support/action_ids.h"
#include "support/messages.h"

namespace dtrain::parallel::balance_test {
namespace {

using testing::operator""_b;
using dtrain::testing::Names;

using Split = std::vector<std::int64_t>;

// Returns the layers of each part.
Split levels_of(const std::vector<BlockRange>& parts) {
  Split layers;
  for (const BlockRange& part : parts) layers.push_back(part.size());
  --layers.front();
  --layers.back();
  return layers;
}

std::vector<BlockLoad> uniform(std::int64_t num_layers, double head_flops) {
  std::vector<BlockLoad> blocks(static_cast<std::size_t>(num_layers) + 2,
                                {.flops = 10, .bytes = 10});
  blocks.front() = {};
  blocks.back() = {.flops = head_flops, .bytes = 1};
  return blocks;
}

// Returns every split of `layers` layers into parts of at least one.
void for_each_split(std::int64_t layers, std::int64_t parts, Split& begun,
                    const std::function<void(const Split&)>& visit) {
  if (parts == 1) {
    begun.push_back(layers);
    visit(begun);
    begun.pop_back();
    return;
  }
  for (std::int64_t first = 1; first <= layers - (parts - 1); ++first) {
    begun.push_back(first);
    for_each_split(layers - first, parts - 1, begun, visit);
    begun.pop_back();
  }
}

// Computes the largest FLOPs and memory of a split directly; gpipe keeps all microbatches.
std::pair<double, double> costs_of(const Split& split, const std::vector<BlockLoad>& blocks,
                                   const std::function<double(std::size_t)>& in_flight) {
  double most_flops = 0, most_bytes = 0;
  std::size_t block = 0;
  for (std::size_t part = 0; part < split.size(); ++part) {
    double flops = 0, bytes = 0;
    std::int64_t left = split[part] + (part == 0) + (part + 1 == split.size());
    for (; left > 0; --left, ++block) {
      flops += blocks[block].flops;
      bytes += static_cast<double>(blocks[block].bytes);
    }
    most_flops = std::max(most_flops, flops);
    most_bytes = std::max(most_bytes, bytes * in_flight(part));
  }
  return {most_flops, most_bytes};
}

TEST_CASE("Equal layers are split evenly, fewer with an expensive head") {
  const PipelineShape shape{4, 8, {PipelineKind::one_f_one_b}};
  CHECK(levels_of(balance_parts(shape, uniform(8, 0))) == Split{2, 2, 2, 2});
  CHECK(levels_of(balance_parts(shape, uniform(11, 10))) == Split{3, 3, 3, 2});
  CHECK(levels_of(balance_parts(shape, uniform(4, 100))) == Split{1, 1, 1, 1});
}

TEST_CASE("At equal FLOPs, stages with more microbatches in flight get fewer layers") {
  // 1F1B keeps 4, 3, 2 and 1: of 6 layers in parts of at most 2 the last two stages take the pairs.
  const auto blocks = uniform(6, 0);
  CHECK(levels_of(balance_parts({4, 8, {PipelineKind::one_f_one_b}}, blocks)) == Split{1, 1, 2, 2});
}

TEST_CASE("The first part has the embedding, the last the head") {
  const auto parts = balance_parts({2, 2, {PipelineKind::gpipe}}, uniform(4, 0));
  CHECK(parts == std::vector<BlockRange>{{0_b, 3_b}, {3_b, 6_b}});
  CHECK(balance_parts({1, 2, {PipelineKind::gpipe}}, uniform(4, 0)) ==
        std::vector<BlockRange>{{0_b, 6_b}});
}

TEST_CASE("The split minimises the most expensive part, then the largest one") {
  std::mt19937 random(7);
  std::uniform_int_distribution<int> number(1, 6);
  for (int trial = 0; trial < 300; ++trial) {
    const std::int64_t stages = number(random);
    const std::int64_t microbatches = number(random);
    const std::int64_t layers = stages + number(random);
    const auto kind = trial % 2 == 0 ? PipelineKind::gpipe : PipelineKind::one_f_one_b;
    std::vector<BlockLoad> blocks(static_cast<std::size_t>(layers) + 2);
    for (BlockLoad& block : blocks)
      block = {.flops = 1.0 * number(random), .bytes = number(random)};
    const auto in_flight = [&](std::size_t part) {
      const std::int64_t behind = stages - static_cast<std::int64_t>(part);
      return static_cast<double>(kind == PipelineKind::gpipe ? microbatches
                                                             : std::min(behind, microbatches));
    };
    std::pair<double, double> best{1e9, 1e9};
    Split begun;
    for_each_split(layers, stages, begun, [&](const Split& split) {
      best = std::min(best, costs_of(split, blocks, in_flight));
    });
    const Split found = levels_of(balance_parts({stages, microbatches, {kind}}, blocks));
    CHECK(costs_of(found, blocks, in_flight) == best);
  }
}

TEST_CASE("Chunks of interleaved stages are balanced as parts") {
  const PipelineShape shape{2, 4, {PipelineKind::interleaved, 3}};
  CHECK(levels_of(balance_parts(shape, uniform(12, 0))) == Split{2, 2, 2, 2, 2, 2});
  CHECK_THROWS_WITH(balance_parts(shape, uniform(5, 0)),
                    Names("--pp 2", "--schedule-pp interleaved:3", "6 parts", "--layers 5"));
}

TEST_CASE("A manual split is used unchanged") {
  const PipelineShape shape{3, 4, {PipelineKind::one_f_one_b}};
  CHECK(split_manually(shape, 12, {3, 5, 4}) ==
        std::vector<BlockRange>{{0_b, 4_b}, {4_b, 9_b}, {9_b, 14_b}});
}

TEST_CASE("A manual split that does not fit is rejected with both counts") {
  const PipelineShape shape{3, 4, {PipelineKind::one_f_one_b}};
  CHECK_THROWS_WITH(split_manually(shape, 12, {3, 9}),
                    Names("--pp-split 3,9", "2 parts", "--pp 3"));
  CHECK_THROWS_WITH(split_manually(shape, 12, {3, 4, 4}),
                    Names("--pp-split 3,4,4", "11 layers", "--layers", 12));
  CHECK_THROWS_WITH(split_manually(shape, 12, {12, 0, 0}), Names("--pp-split 12,0,0", "part 1"));
  CHECK_THROWS_WITH(split_manually(shape, 2, {1, 1, 0}), Names("--pp 3", "--layers 2"));
}

}  // namespace
}  // namespace dtrain::parallel::balance_test
