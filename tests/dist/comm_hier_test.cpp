// Hierarchical collectives compared with one flat group; hosts are simulated by groups of threads.
#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <map>

#include "dtrain/base/error.h"
#include "dtrain/comm/internal/hier/hier_transport.h"
#include "support/ranks/local_ranks.h"
#include "support/values.h"

namespace dtrain::testing::comm_hier_test {
namespace {

using comm::HierTransport;
using comm::HostGrid;
using comm::ProcessGroup;
using comm::ReduceOp;
using comm::Transport;
using comm::World;
using Counts = std::vector<std::int64_t>;

/// Adapts a group to a Transport, and counts the calls that move or add tensors.
class GroupTransport final : public Transport {
 public:
  GroupTransport(std::shared_ptr<ProcessGroup> group, std::int64_t& calls)
      : group_(std::move(group)), calls_(calls) {}

  std::int64_t run(const comm::Operation& operation, const base::Deadline&) override {
    if (!std::holds_alternative<comm::Barrier>(operation)) ++calls_;
    group_->post(operation).wait();
    return 0;
  }
  void close(const std::string& reason) noexcept override { group_->abort(reason); }

 private:
  std::shared_ptr<ProcessGroup> group_;
  std::int64_t& calls_;
};

/// A rank's transport, and its counts of calls.
struct Fixture {
  HostGrid grid;
  std::shared_ptr<ProcessGroup> all;
  std::int64_t calls = 0;  // intra-host and inter-host
  std::int64_t calls_of_all = 0;
  std::unique_ptr<HierTransport> transport;

  Fixture(World& world, const HostGrid& hosts, bool is_ordered = true) : grid(hosts) {
    all = group_of_all(world);
    std::shared_ptr<ProcessGroup> intra_host, inter_host;
    for (std::int64_t h = 0; h < grid.hosts; ++h) {
      Counts ranks;
      for (std::int64_t p = 0; p < grid.per_host; ++p) ranks.push_back(grid.rank(h, p));
      if (auto made = world.split(ranks, fmt::format("host {}", h))) intra_host = made;
    }
    for (std::int64_t p = 0; p < grid.per_host; ++p) {
      Counts ranks;
      for (std::int64_t h = 0; h < grid.hosts; ++h) ranks.push_back(grid.rank(h, p));
      if (auto made = world.split(ranks, fmt::format("place {}", p))) inter_host = made;
    }
    transport = std::make_unique<HierTransport>(
        grid, world.rank(),
        HierTransport::Parts{.intra_host = std::make_unique<GroupTransport>(intra_host, calls),
                             .inter_host = std::make_unique<GroupTransport>(inter_host, calls),
                             .all = std::make_unique<GroupTransport>(all, calls_of_all)},
        is_ordered);
  }
};

base::Deadline soon() { return base::Deadline(std::chrono::seconds(20)); }

void check_reductions(World& world, const HostGrid& grid, at::ScalarType dtype) {
  Fixture fixture(world, grid);
  const std::int64_t size = world.size();
  for (const std::int64_t count : {1, 63, 64, 65, 1000, 50'021}) {
    for (const ReduceOp op : {ReduceOp::sum, ReduceOp::max}) {
      const at::Tensor own = values_of(world.rank(), count, dtype);
      const at::Tensor expected = own.clone();
      fixture.all->all_reduce(expected, op).wait();
      fixture.transport->run(comm::AllReduce{own, op}, soon());
      expect(same_bits(own, expected), fmt::format("the flat group's reduction of {}", count));
    }
    const at::Tensor input = values_of(world.rank(), count * size, dtype);
    const at::Tensor expected = at::empty({count}, input.options());
    const at::Tensor output = expected.clone();
    fixture.all->reduce_scatter(input, expected).wait();
    fixture.transport->run(comm::ReduceScatter{input, output}, soon());
    expect(same_bits(output, expected), fmt::format("the flat group's part of {}", count));
    const at::Tensor in_place = input.narrow(0, world.rank() * count, count);
    fixture.transport->run(comm::ReduceScatter{input, in_place}, soon());
    expect(same_bits(in_place, expected), "the same in place");
  }
}

TEST_CASE("Hierarchical sums have the bits of the flat order") {
  const HostGrid grid = GENERATE(HostGrid{2, 2}, HostGrid{2, 3}, HostGrid{4, 2}, HostGrid{3, 2});
  on_threads(grid.hosts * grid.per_host, [&](World& world) {
    for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kBFloat16, at::kLong}) {
      check_reductions(world, grid, dtype);
    }
  });
}

TEST_CASE("Sums are hierarchical whenever the bits allow") {
  const auto goes_by_host = [](const HostGrid& grid, at::ScalarType dtype, bool is_ordered) {
    std::int64_t flat = -1;
    on_threads(grid.hosts * grid.per_host, [&](World& world) {
      Fixture fixture(world, grid, is_ordered);
      fixture.transport->run(comm::AllReduce{at::ones({100}, at::TensorOptions().dtype(dtype))},
                             soon());
      expect(fixture.calls + fixture.calls_of_all > 0, "some call");
      if (world.rank() == 0) flat = fixture.calls_of_all;
    });
    return flat == 0;
  };
  CHECK(goes_by_host({2, 2}, at::kFloat, true));
  CHECK(goes_by_host({2, 3}, at::kDouble, true));
  CHECK_FALSE(goes_by_host({3, 2}, at::kFloat, true));
  CHECK(goes_by_host({3, 2}, at::kFloat, false));
  CHECK_FALSE(goes_by_host({2, 2}, at::kBFloat16, true));
  CHECK(goes_by_host({2, 2}, at::kBFloat16, false));
}

void check_movements(World& world, const HostGrid& grid) {
  Fixture fixture(world, grid);
  const std::int64_t size = world.size();
  for (const std::int64_t base : {0, 1, 1000}) {
    std::vector<at::Tensor> parts;
    Counts counts;
    for (std::int64_t rank = 0; rank < size; ++rank) {
      counts.push_back(rank % 3 == 1 ? 0 : base + 7 * rank);
      parts.push_back(values_of(rank, counts.back(), at::kFloat));
    }
    const at::Tensor expected = at::cat(parts);
    const at::Tensor output = at::zeros_like(expected);
    const comm::PartedTensor parted(output, counts);
    fixture.transport->run(comm::AllGather{parts[static_cast<std::size_t>(world.rank())], parted},
                           soon());
    expect(same_bits(output, expected), "all parts");
  }
  for (std::int64_t root = 0; root < size; ++root) {
    const at::Tensor told = values_of(root, 100, at::kFloat);
    const at::Tensor heard = world.rank() == root ? told.clone() : at::zeros({100});
    fixture.transport->run(comm::Broadcast{heard, root}, soon());
    expect(same_bits(heard, told), "the root's values");
  }
  const std::int64_t next = (world.rank() + 1) % size;
  const std::int64_t previous = (world.rank() + size - 1) % size;
  const at::Tensor given = values_of(world.rank(), 100, at::kFloat);
  const at::Tensor taken = at::zeros({100});
  const auto send = [&] { fixture.transport->run(comm::Send{given, next}, soon()); };
  const auto receive = [&] { fixture.transport->run(comm::Recv{taken, previous}, soon()); };
  world.rank() % 2 == 0 ? (send(), receive()) : (receive(), send());
  expect(same_bits(taken, values_of(previous, 100, at::kFloat)), "the previous rank's values");
  fixture.transport->run(comm::Barrier{}, soon());
}

TEST_CASE("Gathers, broadcasts and messages reach the right ranks on all hosts") {
  const HostGrid grid = GENERATE(HostGrid{2, 2}, HostGrid{3, 2}, HostGrid{2, 4});
  on_threads(grid.hosts * grid.per_host, [&](World& world) { check_movements(world, grid); });
}

TEST_CASE("A grid has equally many consecutive ranks on each host") {
  const auto grid = [](const Counts& hosts) { return comm::grid_of(hosts); };
  CHECK(grid({5, 5, 7, 7})->hosts == 2);
  CHECK(grid({5, 5, 7, 7})->per_host == 2);
  CHECK(grid({1, 2, 3})->hosts == 3);
  CHECK(grid({4, 4})->hosts == 1);
  CHECK_FALSE(grid({1, 2, 1, 2}).has_value());
  CHECK_FALSE(grid({1, 1, 2}).has_value());
  CHECK_FALSE(grid({1, 1, 2, 3}).has_value());
  CHECK_FALSE(grid({}).has_value());
}

}  // namespace
}  // namespace dtrain::testing::comm_hier_test
