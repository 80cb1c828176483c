#include "dtrain/config/layout.h"

#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "dtrain/config/assign.h"
#include "dtrain/config/schema.h"
#include "dtrain/data/batch.h"
#include "support/settings.h"
#include "support/tree_sum.h"

namespace dtrain::config::layout_test {
namespace {

// A sum, written with the brackets of its additions.
std::string sum_of(std::vector<std::string> terms) {
  testing::add_in_tree_order(
      static_cast<std::int64_t>(terms.size()), [&](std::int64_t into, std::int64_t from) {
        std::string& sum = terms[static_cast<std::size_t>(into)];
        sum = fmt::format("({}+{})", sum, terms[static_cast<std::size_t>(from)]);
      });
  return terms.front();
}

// The sum that the layout makes: its deal of microbatches, in the order of its additions.
std::string sum_under(const LayoutConfig& layout, std::int64_t grad_accum) {
  const bool sharded = layout.accumulate == Accumulation::sharded;
  const auto term = [&](std::int64_t rank, std::int64_t index) {
    const data::MicrobatchDeal deal{
        .rank = rank, .grad_accum = grad_accum, .interleave = sharded ? layout.shard_size : 1};
    return std::to_string(deal.number_of(data::MicrobatchId(index)));
  };
  const std::int64_t inner = sharded ? layout.shard_size : grad_accum;
  const std::int64_t outer = sharded ? grad_accum : layout.shard_size;
  std::vector<std::string> copies;
  for (std::int64_t first = 0; first < layout.dp; first += layout.shard_size) {
    std::vector<std::string> sums;
    for (std::int64_t i = 0; i < outer; ++i) {
      std::vector<std::string> terms;
      for (std::int64_t j = 0; j < inner; ++j) {
        terms.push_back(sharded ? term(first + j, i) : term(first + i, j));
      }
      sums.push_back(sum_of(terms));
    }
    copies.push_back(sum_of(sums));
  }
  return sum_of(copies);
}

std::string sum_of_one_rank(std::int64_t count) {
  std::vector<std::string> terms;
  for (std::int64_t m = 0; m < count; ++m) terms.push_back(std::to_string(m));
  return sum_of(terms);
}

TEST_CASE("A layout keeps the order of one rank where its additions have the same brackets") {
  std::int64_t kept = 0;
  std::int64_t cut = 0;
  const auto check = [&](const LayoutConfig& layout, std::int64_t grad_accum) {
    INFO(layout.dp << " ranks, shards of " << layout.shard_size << ", " << grad_accum << " "
                   << layout.accumulate);
    const bool keeps = keeps_order_of_one_rank(layout, grad_accum);
    CHECK(keeps == (sum_under(layout, grad_accum) == sum_of_one_rank(layout.dp * grad_accum)));
    ++(keeps ? kept : cut);
  };
  for (std::int64_t dp = 1; dp <= 8; ++dp) {
    for (std::int64_t shard_size = 1; shard_size <= dp; ++shard_size) {
      if (dp % shard_size != 0) continue;
      LayoutConfig layout;
      layout.dp = dp;
      layout.shard_size = shard_size;
      for (const Accumulation accumulate : {Accumulation::local, Accumulation::sharded}) {
        layout.accumulate = accumulate;
        for (std::int64_t grad_accum = 1; grad_accum <= 8; ++grad_accum) check(layout, grad_accum);
      }
    }
  }
  CHECK(kept > 100);
  CHECK(cut > 50);
}

TEST_CASE("A shape has a number for each axis, 1 where none is given") {
  const MeshShape shape{{Axis::tp, 4}, {Axis::pp, 3}};
  CHECK(shape[Axis::dp] == 1);
  CHECK(shape.num_ranks() == 12);
  CHECK(shape.stride(Axis::tp) == 1);
  CHECK(shape.stride(Axis::dp) == 4);
  CHECK(shape.stride(Axis::pp) == 4);
  CHECK(shape.text() == "pp 3, dp 1, tp 4");
  CHECK(shape != MeshShape{});
}

TEST_CASE("Each axis has a setting of its name for its size") {
  for (const Axis axis : kAxes) {
    LayoutConfig layout;
    size_of(layout, axis) = 7;
    CHECK(mesh_of(layout)[axis] == 7);
    const Setting* setting = find_key(fmt::format("layout.{}", name_of(axis)));
    REQUIRE(setting != nullptr);
    Config config;
    config.layout = layout;
    CHECK(value_text(*setting, config) == "7");
  }
}

}  // namespace
}  // namespace dtrain::config::layout_test
