#include <array>
#include <catch2/catch.hpp>
#include <chrono>
#include <string>
#include <vector>

#include "dtrain/comm/exchange.h"
#include "support/local_ranks.h"

namespace dtrain::testing::comm_clock_offset_test {
namespace {

using namespace std::chrono_literals;
using base::Clock;

// Times that a clock of host h is ahead of this machine's.
constexpr std::array kAhead{5s, -3600s, 86'400s};

/// What each rank finds where rank r lives on host hosts[r].
std::vector<Clock::duration> offsets(const std::vector<std::size_t>& hosts) {
  std::vector<Clock::duration> found(hosts.size());
  on_threads(static_cast<std::int64_t>(hosts.size()), [&](comm::World& world) {
    const auto rank = static_cast<std::size_t>(world.rank());
    const std::size_t host = hosts[rank];
    found[rank] = comm::clock_offset(world.control(), std::to_string(host),
                                     [&] { return Clock::now() + kAhead.at(host); });
  });
  return found;
}

TEST_CASE("Every rank learns how far its host's clock is ahead of rank 0's") {
  const std::vector<std::size_t> hosts{0, 1, 0, 2, 1};
  const auto found = offsets(hosts);
  for (std::size_t rank = 0; rank < hosts.size(); ++rank) {
    const auto error = found[rank] - (kAhead.at(hosts[rank]) - kAhead.at(0));
    INFO("rank " << rank << " is off by " << error.count() << " ns");
    CHECK(std::chrono::abs(error) < 50ms);
  }
  CHECK(found[1] == found[4]);  // one clock
}

TEST_CASE("Ranks on one host share one clock") {
  for (const Clock::duration each : offsets({0, 0, 0})) CHECK(each == 0s);
}

}  // namespace
}  // namespace dtrain::testing::comm_clock_offset_test
