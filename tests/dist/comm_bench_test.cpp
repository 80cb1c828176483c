// Times of all-reduces, printed only: dist_tests "[bench]".
#include <fmt/format.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdio>

#include "support/local_ranks.h"

namespace dtrain::testing {
namespace {

std::string time_all_reduce(comm::World& world, const std::string& bytes) {
  const auto group = group_of_all(world);
  const auto tensor = at::zeros({std::stoll(bytes) / 4});
  const int repeats = std::stoll(bytes) > 1'000'000 ? 40 : 1000;
  std::vector<double> times;
  for (int i = 0; i < repeats; ++i) {
    group->barrier();
    const auto start = base::Clock::now();
    group->all_reduce(tensor).wait();
    times.push_back(base::seconds_since(start));
  }
  std::sort(times.begin(), times.end());
  group->barrier();
  return fmt::format("median {:9.1f} us, least {:9.1f} us", 1e6 * times[times.size() / 2],
                     1e6 * times[0]);
}

const RankProgram time_program("time all_reduce", time_all_reduce);

TEST_CASE("Times of all-reduces", "[.bench]") {
  for (const auto reduction : {comm::Reduction::ordered, comm::Reduction::fast}) {
    for (const char* bytes : {"4096", "1703936", "33554432"}) {
      const auto outcomes = on_processes(
          "time all_reduce", {.size = 2, .argument = bytes, .group = {.reduction = reduction}});
      std::printf("2 processes, %s, %8s bytes: %s\n",
                  reduction == comm::Reduction::fast ? "fast   " : "ordered", bytes,
                  outcomes[0].text.c_str());
    }
  }
}

}  // namespace
}  // namespace dtrain::testing
