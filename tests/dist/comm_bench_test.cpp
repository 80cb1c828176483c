// Times of all-reduces, printed only: dist_tests "[bench]".
#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdio>

#include "dtrain/comm/rendezvous/socket.h"
#include "support/local_ranks.h"

namespace dtrain::testing {
namespace {

constexpr int kRepeats = 60;

/// A second world of the same ranks, whose reductions are gloo's own.
std::shared_ptr<comm::World> fast_world(comm::World& world, comm::ProcessGroup& group) {
  comm::WorldOptions options{.backend = "gloo", .rank = world.rank(), .size = world.size()};
  options.group.reduction = comm::Reduction::fast;
  const auto port = at::zeros({1}, at::kLong);
  if (world.rank() == 0) {
    options.store_fd = comm::listen_at("127.0.0.1", 0);
    port.fill_(comm::port_of(options.store_fd));
  }
  group.broadcast(port, 0).wait();
  options.master_port = port.item<std::int64_t>();
  return comm::create_world(options);
}

double cpu_seconds() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

struct Times {
  std::vector<double> wall;
  double cpu = 0;

  void add(comm::ProcessGroup& group, const at::Tensor& tensor) {
    group.barrier();
    const double cpu_before = cpu_seconds();
    const auto start = base::Clock::now();
    group.all_reduce(tensor).wait();
    wall.push_back(base::seconds_since(start));
    cpu += cpu_seconds() - cpu_before;
  }

  std::string text() {
    std::sort(wall.begin(), wall.end());
    return fmt::format("least {:8.3f} ms, median {:8.3f} ms, cpu {:8.3f} ms", 1e3 * wall[0],
                       1e3 * wall[wall.size() / 2], 1e3 * cpu / static_cast<double>(wall.size()));
  }
};

std::string time_all_reduce(comm::World& world, const std::string& bytes) {
  const auto ordered_group = group_of_all(world);
  const auto other_world = fast_world(world, *ordered_group);
  const auto fast_group = group_of_all(*other_world);
  const auto tensor = at::zeros({std::stoll(bytes) / 4});
  Times ordered;
  Times fast;
  for (int i = 0; i < kRepeats; ++i) {  // in turn, so that both see the same machine
    ordered.add(*ordered_group, tensor);
    fast.add(*fast_group, tensor);
  }
  ordered_group->barrier();
  return fmt::format("  ordered: {}\n  fast:    {}", ordered.text(), fast.text());
}

const RankProgram time_program("time all_reduce", time_all_reduce);

TEST_CASE("Times of all-reduces", "[.bench]") {
  for (const std::int64_t size : {2, 4}) {
    for (const char* bytes : {"4096", "1703936", "33554432"}) {
      const auto outcomes = on_processes("time all_reduce", {.size = size, .argument = bytes});
      std::printf("%s bytes, %d processes\n%s\n", bytes, static_cast<int>(size),
                  outcomes[0].text.c_str());
    }
  }
}

}  // namespace
}  // namespace dtrain::testing
