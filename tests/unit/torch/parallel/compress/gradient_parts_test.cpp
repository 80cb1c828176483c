#include "dtrain/parallel/compress/gradient_parts.h"

#include <catch2/catch.hpp>

#include "support/ids.h"

namespace dtrain::parallel::gradient_parts_test {
namespace {

using testing::spec;
using testing::operator""_p;

param::ParameterSpec matrix(const char* name, std::int64_t rows, std::int64_t columns) {
  param::ParameterSpec own = spec(name, rows * columns);
  own.shape = {rows, columns};
  own.export_view = own.shape;
  own.export_order = {0, 1};
  return own;
}

Compression of(const char* scheme, std::int64_t min_elements) {
  return {.scheme = config::Compression::parse(scheme).value(), .min_elements = min_elements};
}

// Every element of the shard's parameters is in one part, from the end to the beginning.
void check_cover(const param::ArenaLayout& layout, param::ShardId shard,
                 const std::vector<GradientPart>& parts) {
  for (std::size_t i = 1; i < parts.size(); ++i) {
    CHECK(parts[i].range.end <= parts[i - 1].range.begin);
  }
  for (const param::ParameterId id : layout.parameters()) {
    const param::ElementRange own = layout.range_in(id, shard);
    std::int64_t covered = 0;
    for (const GradientPart& part : parts) {
      covered += std::max<std::int64_t>(0, common(own, part.range).size());
    }
    CHECK(covered == std::max<std::int64_t>(0, own.size()));
  }
}

TEST_CASE("Small neighbours travel whole and together, large parameters in parts of a million") {
  const param::ParameterSpecs specs{matrix("a", 10, 10), matrix("b", 10, 7),
                                    matrix("c", 1'500, 1'000), matrix("d", 3, 3)};
  const param::ArenaLayout layout(specs, {});
  const auto parts = gradient_parts(layout, param::ShardId(0), of("topk:0.01", 200));
  check_cover(layout, param::ShardId(0), parts);
  REQUIRE(parts.size() == 4);
  CHECK_FALSE(parts[0].is_compressed);
  CHECK(parts[1].is_compressed);
  CHECK(parts[1].size() == 1'500'000 - (1 << 20));
  CHECK(parts[2].size() == 1 << 20);
  CHECK_FALSE(parts[3].is_compressed);
  CHECK(parts[3].range.begin == layout.range(0_p).begin);
  CHECK(parts[3].range.end == layout.range(1_p).end);
}

TEST_CASE("A frozen parameter is in no part, and its neighbours do not travel together") {
  const param::ParameterSpecs specs{matrix("a", 10, 10), matrix("frozen", 8, 8),
                                    matrix("c", 10, 10)};
  const param::ArenaLayout layout(specs, {.frozen = {1_p}});
  const auto parts = gradient_parts(layout, param::ShardId(0), of("topk:0.01", 200));
  REQUIRE(parts.size() == 2);
  CHECK(parts[0].range == layout.range(2_p));
  CHECK(parts[1].range == layout.range(0_p));
}

TEST_CASE("A shard's whole rows are a matrix, and the ends of others travel whole") {
  const param::ParameterSpecs specs{matrix("a", 101, 100), matrix("b", 4, 4'000)};
  const param::ArenaLayout layout(specs, {.num_shards = 2});
  for (const param::ShardId shard : {param::ShardId(0), param::ShardId(1)}) {
    const auto parts = gradient_parts(layout, shard, of("powersgd:2", 0));
    check_cover(layout, shard, parts);
    for (const GradientPart& part : parts) {
      if (!part.is_compressed) continue;
      const param::ElementRange whole = layout.range(part.id);
      CHECK((part.range.begin - whole.begin) % part.columns == 0);
      CHECK(part.rows * part.columns == part.size());
      CHECK(2 * (part.rows + part.columns) < part.size());
    }
  }
  const auto whole =
      gradient_parts(param::ArenaLayout(specs, {}), param::ShardId(0), of("powersgd:1024", 0));
  for (const GradientPart& part : whole) CHECK_FALSE(part.is_compressed);
}

}  // namespace
}  // namespace dtrain::parallel::gradient_parts_test
