// The control plane: a CPU group of all ranks beside the groups that move a step's tensors.
#include <catch2/catch.hpp>

#include "dtrain/comm/exchange.h"
#include "dtrain/mesh/mesh_groups.h"
#include "support/ranks/local_ranks.h"
#include "support/values.h"

namespace dtrain::testing::comm_control_test {
namespace {

using comm::Work;
using comm::World;

at::Tensor sum_of_ranks(comm::ProcessGroup& group, Work& work) {
  const auto tensor = at::full({1}, static_cast<double>(group.rank()), at::kDouble);
  work = group.all_reduce(tensor);
  return tensor;
}

/// Exchanges texts while a call of the data plane waits for a rank; calls of the two planes need no
/// common order.
std::string use_both_planes(World& world, const std::string&) {
  comm::ProcessGroup& control = world.control();
  expect(&control == &world.control() && control.size() == world.size() &&
             control.rank() == world.rank() && control.name() == "control",
         "one group of all ranks");
  expect(world.options(at::kHalf).device() == world.device() &&
             world.options(at::kHalf).dtype() == at::kHalf,
         "options of a tensor where the world's tensors live");
  const auto data = group_of_all(world);
  const double all = static_cast<double>(world.size() * (world.size() - 1)) / 2;
  Work early;
  Work late;
  at::Tensor sum;
  if (world.rank() == 0) sum = sum_of_ranks(*data, early);
  for (std::int64_t call = 0; call < 3; ++call) {
    const auto texts = comm::exchange_texts(control, std::to_string(world.rank()));
    expect(texts.back() == std::to_string(world.size() - 1), "the last rank's text");
  }
  if (world.rank() != 0) sum = sum_of_ranks(*data, late);
  early.wait();
  late.wait();
  expect(sum.item<double>() == all, "the sum of the data plane");
  return "right";
}

const RankProgram both_planes("both planes", use_both_planes);

TEST_CASE("The control plane does not wait for calls of the data plane") {
  on_threads(1, [](World& world) { use_both_planes(world, ""); });
  on_threads(3, [](World& world) { use_both_planes(world, ""); });
  const std::string backend = GENERATE("gloo", "shm");
  for (const auto& outcome : on_processes("both planes", {.size = 3, .backend = backend})) {
    INFO(outcome.text << outcome.standard_error);
    CHECK(outcome.text == "right");
  }
}

std::string use_control_alone(World& world, const std::string&) {
  world.close_rendezvous();
  return comm::exchange_texts(world.control(), "rank " + std::to_string(world.rank())).front();
}

const RankProgram control_alone("control alone", use_control_alone);

TEST_CASE("The control plane exists from the start and outlives the creation of groups") {
  const std::string backend = GENERATE("gloo", "shm");
  for (const auto& outcome : on_processes("control alone", {.size = 2, .backend = backend})) {
    INFO(outcome.text << outcome.standard_error);
    CHECK(outcome.text == "rank 0");
  }
}

/// Creates groups of different sizes first, so that each rank has numbered its connections
/// differently, and then a group of all.
std::string join_groups(World& world, const std::string&) {
  std::vector<std::shared_ptr<comm::ProcessGroup>> groups;
  std::vector<std::int64_t> ranks = comm::ranks_below(world.size());
  for (; ranks.size() > 1; ranks.pop_back()) groups.push_back(world.split(ranks, "first ranks"));
  const std::vector<std::int64_t> reversed{2, 1, 0};
  groups.push_back(world.split(reversed, "reversed"));
  double sum = 0;
  for (const auto& group : groups) {
    if (group == nullptr) continue;
    Work work;
    const at::Tensor total = sum_of_ranks(*group, work);
    work.wait();
    sum += total.item<double>();
  }
  return std::to_string(static_cast<std::int64_t>(sum));
}

const RankProgram different_groups("groups of different sizes", join_groups);

TEST_CASE("Ranks whose earlier groups were of different sizes connect to each other") {
  const std::string backend = GENERATE("gloo", "shm");
  const auto outcomes = on_processes("groups of different sizes", {.size = 3, .backend = backend});
  const std::vector<std::string> sums{"7", "7", "6"};  // 3 and 3 of all, 1 of the first two
  for (std::size_t rank = 0; rank < sums.size(); ++rank) {
    INFO(outcomes[rank].text << outcomes[rank].standard_error);
    CHECK(outcomes[rank].text == sums[rank]);
  }
}

TEST_CASE("The job's traffic counters exclude the control plane") {
  on_threads(2, [](World& world) {
    const mesh::MeshGroups groups(world, mesh::DeviceMesh({{mesh::Axis::dp, 2}}));
    (void)comm::exchange_texts(world.control(), "a fact");
    expect(groups.counters().calls == 0 && groups.counters().bytes_sent == 0, "no traffic");
    expect(world.control().calls().counters().bytes_sent > 0, "traffic of the control plane");
  });
}

TEST_CASE("A failing rank ends the control plane of the others") {
  std::string seen;
  CHECK_THROWS_WITH(on_threads(2,
                               [&](World& world) {
                                 if (world.rank() == 1) throw std::runtime_error("rank 1's reason");
                                 try {
                                   world.control().barrier();
                                 } catch (const std::exception& error) {
                                   seen = error.what();
                                   throw;
                                 }
                               }),
                    "rank 1's reason");
  CHECK_THAT(seen, Catch::Contains("rank 1's reason"));
}

}  // namespace
}  // namespace dtrain::testing::comm_control_test
