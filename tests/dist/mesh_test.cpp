#include <catch2/catch.hpp>
#include <numeric>
#include <set>

#include "dtrain/base/error.h"
#include "dtrain/mesh/mesh_groups.h"
#include "support/local_ranks.h"
#include "support/values.h"

namespace dtrain::testing {
namespace {

using comm::World;
using mesh::Axis;
using mesh::DeviceMesh;
using mesh::MeshGroups;

constexpr Axis kAxes[] = {Axis::pp, Axis::dp, Axis::tp};

TEST_CASE("Neighbouring ranks share tp, then dp, then pp") {
  const DeviceMesh small({.pp = 2, .dp = 3, .tp = 4});
  CHECK(small.world_size() == 24);
  CHECK(small.coordinate(0) == mesh::MeshShape{0, 0, 0});
  CHECK(small.coordinate(1) == mesh::MeshShape{0, 0, 1});
  CHECK(small.coordinate(4) == mesh::MeshShape{0, 1, 0});
  CHECK(small.coordinate(12) == mesh::MeshShape{1, 0, 0});
  CHECK(small.line(Axis::tp, 5) == std::vector<std::int64_t>{4, 5, 6, 7});
  CHECK(small.line(Axis::dp, 5) == std::vector<std::int64_t>{1, 5, 9});
  CHECK(small.line(Axis::pp, 5) == std::vector<std::int64_t>{5, 17});
}

TEST_CASE("A mesh of 4,096 ranks gives each one place and each axis disjoint lines") {
  const DeviceMesh large({.pp = 8, .dp = 64, .tp = 8});
  REQUIRE(large.world_size() == 4096);
  for (std::int64_t rank = 0; rank < 4096; ++rank) {
    REQUIRE(large.rank(large.coordinate(rank)) == rank);
  }
  for (const Axis axis : kAxes) {
    std::set<std::int64_t> seen;
    for (const auto& line : large.lines(axis)) {
      REQUIRE(static_cast<std::int64_t>(line.size()) == large.size(axis));
      for (const auto rank : line) REQUIRE(seen.insert(rank).second);
    }
    CHECK(seen.size() == 4096);
  }
}

TEST_CASE("A mesh with an axis of zero is refused") {
  CHECK_THROWS_WITH(DeviceMesh({.pp = 1, .dp = 0, .tp = 1}), Catch::Contains("layout.dp is 0"));
}

std::string sum_along_axes(World& world, const std::string&) {
  const DeviceMesh mesh({.pp = 1, .dp = 2, .tp = world.size() / 2});
  MeshGroups groups(world, mesh);
  expect(groups.world().size() == world.size(), "the group of all");
  for (const Axis axis : kAxes) {
    const auto line = mesh.line(axis, world.rank());
    const auto sum = at::full({1}, static_cast<double>(world.rank()));
    groups.along(axis).all_reduce(sum).wait();
    expect(sum.item<double>() == std::accumulate(line.begin(), line.end(), 0.0),
           "the sum of the ranks along the axis");
    expect(groups.along(axis).name() == mesh::name_of(axis), "the axis' name");
  }
  return {};
}

const RankProgram along_axes("sum along axes", sum_along_axes);

TEST_CASE("Every rank gets a group along each axis") {
  on_threads(8, [](World& world) { sum_along_axes(world, ""); });
  for (const auto& outcome : on_processes("sum along axes", {.size = 4})) {
    INFO(outcome.text);
    CHECK(outcome.status == 0);
  }
}

TEST_CASE("A mesh that does not fit the world is refused") {
  CHECK_THROWS_WITH(on_threads(2,
                               [](World& world) {
                                 MeshGroups groups(world, DeviceMesh({.pp = 1, .dp = 3, .tp = 1}));
                               }),
                    Catch::Contains("wants 3 ranks, but 2 were started"));
}

}  // namespace
}  // namespace dtrain::testing
