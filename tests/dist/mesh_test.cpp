#include <algorithm>
#include <catch2/catch.hpp>
#include <map>
#include <memory>
#include <numeric>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dtrain/base/error.h"
#include "dtrain/mesh/mesh_groups.h"
#include "support/messages.h"
#include "support/ranks/local_ranks.h"
#include "support/values.h"

namespace dtrain::testing::mesh_test {
namespace {

using comm::World;
using mesh::Axis;
using mesh::DeviceMesh;
using mesh::kAxes;
using mesh::MeshGroups;

mesh::MeshShape place(std::int64_t pp, std::int64_t dp, std::int64_t tp) {
  return {{Axis::pp, pp}, {Axis::dp, dp}, {Axis::tp, tp}};
}

// The ranks along `axis` that include this rank.
mesh::Ranks line_of(const DeviceMesh& mesh, Axis axis, std::int64_t rank) {
  for (const mesh::Ranks& line : mesh.groups_along(axis)) {
    if (std::ranges::find(line, rank) != line.end()) return line;
  }
  return {};
}

TEST_CASE("Neighbouring ranks share tp, then dp, then pp") {
  const DeviceMesh small({{Axis::pp, 2}, {Axis::dp, 3}, {Axis::tp, 4}});
  CHECK(small.world_size() == 24);
  CHECK(small.coordinate(0) == place(0, 0, 0));
  CHECK(small.coordinate(1) == place(0, 0, 1));
  CHECK(small.coordinate(4) == place(0, 1, 0));
  CHECK(small.coordinate(12) == place(1, 0, 0));
  CHECK(line_of(small, Axis::tp, 5) == std::vector<std::int64_t>{4, 5, 6, 7});
  CHECK(line_of(small, Axis::dp, 5) == std::vector<std::int64_t>{1, 5, 9});
  CHECK(line_of(small, Axis::pp, 5) == std::vector<std::int64_t>{5, 17});
}

TEST_CASE("A mesh of 4,096 ranks gives each one place and each axis disjoint lines") {
  const DeviceMesh large({{Axis::pp, 8}, {Axis::dp, 64}, {Axis::tp, 8}});
  REQUIRE(large.world_size() == 4096);
  for (std::int64_t rank = 0; rank < 4096; ++rank) {
    const mesh::MeshShape found = large.coordinate(rank);
    REQUIRE((found[Axis::pp] * 64 + found[Axis::dp]) * 8 + found[Axis::tp] == rank);
  }
  for (const Axis axis : kAxes) {
    std::set<std::int64_t> seen;
    for (const auto& line : large.groups_along(axis)) {
      REQUIRE(static_cast<std::int64_t>(line.size()) == large.size(axis));
      for (const auto rank : line) REQUIRE(seen.insert(rank).second);
    }
    CHECK(seen.size() == 4096);
  }
}

TEST_CASE("A mesh with an axis of size 0 is rejected") {
  CHECK_THROWS_WITH(DeviceMesh({{Axis::dp, 0}}), Names("layout.dp", 0));
}

std::string sum_along_axes(World& world, const std::string&) {
  const DeviceMesh mesh({{Axis::dp, 2}, {Axis::tp, world.size() / 2}});
  MeshGroups groups(world, mesh);
  expect(groups.world().size() == world.size(), "the group of all");
  for (const Axis axis : kAxes) {
    const auto line = line_of(mesh, axis, world.rank());
    const auto sum = at::full({1}, static_cast<double>(world.rank()));
    groups.along(axis).all_reduce(sum).wait();
    expect(sum.item<double>() == std::accumulate(line.begin(), line.end(), 0.0),
           "the sum of the ranks along the axis");
    expect(groups.along(axis).name() == name_of(axis), "the axis' name");
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

// The sum of the world ranks in a group.
double members(comm::ProcessGroup& group, World& world) {
  const auto sum = at::full({1}, static_cast<double>(world.rank()));
  group.all_reduce(sum).wait();
  return sum.item<double>();
}

// A world that records which groups are created.
class NotingWorld final : public World {
 public:
  explicit NotingWorld(World& inner) : inner_(inner) {}

  std::int64_t rank() const override { return inner_.rank(); }
  std::int64_t size() const override { return inner_.size(); }
  c10::Device device() const override { return inner_.device(); }
  std::string_view backend() const override { return inner_.backend(); }
  at::Tensor allocate(std::int64_t bytes) override { return inner_.allocate(bytes); }
  std::shared_ptr<comm::ProcessGroup> split(std::span<const std::int64_t> ranks,
                                            std::string_view name) override {
    return inner_.split(ranks, name);
  }
  std::shared_ptr<comm::ProcessGroup> split_subgroups(std::span<const mesh::Ranks> lines,
                                                      std::string_view name,
                                                      comm::GroupCalls calls) override {
    if (calls == comm::GroupCalls::messages) for_messages.emplace_back(name);
    num_lines[std::string(name)].push_back(lines.size());
    return inner_.split_subgroups(lines, name, calls);
  }
  comm::ProcessGroup& control() override { return inner_.control(); }

  std::map<std::string, std::vector<std::size_t>> num_lines;  // by name, of each call
  std::vector<std::string> for_messages;

 private:
  World& inner_;
};

TEST_CASE("All groups of a kind are made by one call") {
  on_threads(8, [](World& world) {
    NotingWorld noting(world);
    const DeviceMesh mesh({{Axis::pp, 2}, {Axis::dp, 2}, {Axis::tp, 2}});
    const MeshGroups groups(noting, mesh);
    for (const char* name : {"pp", "dp", "tp", "pp gradients"}) {
      expect(noting.num_lines.at(name) == std::vector<std::size_t>{4}, name);
    }
    expect(noting.num_lines.at("world") == std::vector<std::size_t>{1}, "the group of all");
    expect(noting.for_messages == std::vector<std::string>{"pp gradients"}, "messages alone");
  });
}

TEST_CASE("An axis of one rank has a single-rank group, whose operations change and send nothing") {
  on_threads(1, [](World& world) {
    const MeshGroups groups(world, DeviceMesh({}), {.tensor = {{"head", 1}}, .stages = {{0}}});
    for (comm::ProcessGroup* group :
         {&groups.world(), &groups.along(Axis::pp), &groups.along(Axis::dp),
          &groups.along(Axis::tp), &groups.shards(), &groups.replicas(), &groups.pp_gradients(),
          &groups.stages({0}), groups.tensor_subgroups().front()}) {
      const auto value = at::arange(3, at::kDouble);
      const auto out = at::empty({3}, at::kDouble);
      comm::Work reduced = group->all_reduce(value);
      expect(reduced.is_completed(), "an end at once");
      group->broadcast(value, 0).wait();
      group->all_gather(value, out).wait();
      group->barrier();
      expect(group->size() == 1 && at::equal(out, at::arange(3, at::kDouble)), "the value itself");
    }
    expect(groups.counters().bytes_sent == 0 && groups.counters().wait_seconds == 0, "no cost");
  });
}

TEST_CASE("An axis is cut into runs of peer_memory, and across them") {
  on_threads(8, [](World& world) {
    const auto rank = static_cast<double>(world.rank());
    const MeshGroups data(world, DeviceMesh({{Axis::dp, 8}}), {.shard_size = 2});
    const double first = rank - static_cast<double>(world.rank() % 2);
    expect(members(data.shards(), world) == 2 * first + 1, "neighbours share a copy of the state");
    expect(&data.gathers() == &data.shards(), "on the CPU one group gathers and reduces");
    expect(members(data.replicas(), world) == 4 * (rank - first) + 0 + 2 + 4 + 6,
           "ranks in equal places hold equal parts");
    const MeshGroups heads(world, DeviceMesh({{Axis::tp, 8}}),
                           {.tensor = {{"pair", 2}, {"all", 8}, {"none", 1}}});
    expect(members(*heads.tensor_subgroups()[0], world) == 2 * first + 1, "the subgroup of two");
    expect(heads.tensor_subgroups()[1] == &heads.along(Axis::tp), "the axis itself");
    expect(heads.tensor_subgroups()[2]->size() == 1, "each alone");
  });
}

TEST_CASE("Stages that share parameters form a group, and the others are alone in theirs") {
  on_threads(8, [](World& world) {
    const MeshGroups groups(world, DeviceMesh({{Axis::pp, 4}, {Axis::dp, 2}}),
                            {.stages = {{0}, {0, 3}, {0, 3}, {0, 1, 2, 3}}});
    const std::int64_t stage = groups.coordinate()[Axis::pp];
    const std::int64_t place = groups.coordinate()[Axis::dp];
    const bool is_end = stage == 0 || stage == 3;
    expect(members(groups.stages({0, 3}), world) ==
               static_cast<double>(is_end ? 6 + 2 * place : world.rank()),
           "the first and the last stage of this pipeline, or this rank");
    expect(groups.stages({0}).size() == 1, "one stage");
    expect(&groups.stages({0, 1, 2, 3}) == &groups.along(Axis::pp), "all stages");
  });
}

TEST_CASE("Counters add up all groups, that of all ranks included") {
  constexpr std::int64_t kBytes = 1 << 20;
  on_threads(4, [](World& world) {
    const MeshGroups groups(world, DeviceMesh({{Axis::dp, 2}, {Axis::tp, 2}}));
    const auto sent_by = [&](comm::ProcessGroup& group) {
      const std::int64_t before = groups.counters().bytes_sent;
      group.all_reduce(at::ones({kBytes / 4})).wait();
      return groups.counters().bytes_sent - before;
    };
    expect(sent_by(groups.along(Axis::tp)) == kBytes, "2 (n - 1) / n of the bytes, n = 2");
    expect(sent_by(groups.world()) == kBytes * 3 / 2, "and n = 4");
    expect(sent_by(groups.shards()) == 0, "nobody shares this rank's copy of the state");
  });
}

TEST_CASE("A mesh that does not fit the world is rejected") {
  CHECK_THROWS_WITH(on_threads(2,
                               [](World& world) {
                                 MeshGroups groups(world, DeviceMesh({{Axis::dp, 3}}));
                               }),
                    Names("3 ranks", 2, "--dp"));
}

}  // namespace
}  // namespace dtrain::testing::mesh_test
