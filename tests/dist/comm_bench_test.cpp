// Times of all-reduces, printed only: dist_tests "[.bench-comm]", or scripts/bench.sh comm.
#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdio>

#include "dtrain/net/socket.h"
#include "support/ranks/local_ranks.h"
#include "support/ranks/port_of.h"

namespace dtrain::testing::comm_bench_test {
namespace {

constexpr int kRepeats = 60;

/// A further world of the same ranks.
std::shared_ptr<comm::World> other_world(comm::World& world, comm::ProcessGroup& group,
                                         const std::string& backend, comm::Reduction reduction) {
  comm::WorldOptions options{.backend = backend, .rank = world.rank(), .size = world.size()};
  options.group.reduction = reduction;
  const auto port = at::zeros({1}, at::kLong);
  if (world.rank() == 0) {
    const base::Descriptor probe(net::listen_at("127.0.0.1", 0));
    port.fill_(port_of(probe.get()));  // which is free once more at the end of this block
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
    // Ranks leave a barrier some microseconds apart, which small calls must not show.
    const int calls = tensor.nbytes() < (64 << 10) ? 100 : 1;
    group.barrier();
    const double cpu_before = cpu_seconds();
    const auto start = base::Clock::now();
    for (int call = 0; call < calls; ++call) group.all_reduce(tensor).wait();
    wall.push_back(base::seconds_since(start) / calls);
    cpu += (cpu_seconds() - cpu_before) / calls;
  }

  std::string text() {
    std::sort(wall.begin(), wall.end());
    return fmt::format("least {:8.3f} ms, median {:8.3f} ms, cpu {:8.3f} ms", 1e3 * wall[0],
                       1e3 * wall[wall.size() / 2], 1e3 * cpu / static_cast<double>(wall.size()));
  }
};

/// One way to reduce.
struct Contender {
  std::string name;
  std::shared_ptr<comm::ProcessGroup> group;
  at::Tensor tensor;
  Times times = {};
};

std::string time_all_reduce(comm::World& world, const std::string& bytes_text) {
  const std::int64_t bytes = std::stoll(bytes_text);
  const auto gloo = group_of_all(world);
  const auto fast_world = other_world(world, *gloo, "gloo", comm::Reduction::fast);
  const auto shm_world = other_world(world, *gloo, "shm", comm::Reduction::ordered);
  const auto shm = group_of_all(*shm_world);
  const auto tensor = at::zeros({bytes / 4});
  const auto shared = shm_world->allocate(bytes).view(at::kFloat);
  std::vector<Contender> contenders{{"gloo, ordered", gloo, tensor},
                                    {"gloo, fast", group_of_all(*fast_world), tensor},
                                    {"shm, any tensor", shm, tensor},
                                    {"shm, of allocate()", shm, shared}};
  for (int i = 0; i < kRepeats; ++i) {  // in turn, so that all see the same machine
    for (Contender& each : contenders) each.times.add(*each.group, each.tensor);
  }
  gloo->barrier();
  std::string text;
  for (Contender& each : contenders) {
    text += fmt::format("  {:<18} {}\n", each.name, each.times.text());
  }
  return text;
}

const RankProgram time_program("time all_reduce", time_all_reduce);

TEST_CASE("Times of all-reduces", "[.bench-comm]") {
  for (const std::int64_t size : {2, 4}) {
    for (const char* bytes : {"4096", "1703936", "33554432"}) {
      const auto outcomes = on_processes("time all_reduce", {.size = size, .argument = bytes});
      std::printf("%s bytes, %d processes\n%s", bytes, static_cast<int>(size),
                  outcomes[0].text.c_str());
    }
  }
}

}  // namespace
}  // namespace dtrain::testing::comm_bench_test
