#include <array>
#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "dtrain/base/error.h"
#include "dtrain/comm/exchange.h"
#include "support/messages.h"
#include "support/ranks/local_ranks.h"
#include "support/values.h"

namespace dtrain::testing::comm_agreement_test {
namespace {

using comm::NamedValue;
using comm::World;
using namespace std::chrono_literals;
using base::Clock;

/// Each rank's error message; empty if it succeeded.
std::vector<std::string> messages(
    std::int64_t size, const std::function<std::vector<NamedValue>(std::int64_t)>& values_of_rank) {
  std::vector<std::string> result(static_cast<std::size_t>(size));
  on_threads(size, [&](World& world) {
    const auto group = group_of_all(world);
    try {
      comm::check_agreement(*group, values_of_rank(world.rank()));
    } catch (const base::Error& error) {
      result[static_cast<std::size_t>(world.rank())] = error.what();
    }
  });
  return result;
}

TEST_CASE("Ranks that agree pass") {
  for (const auto& message : messages(3, [](std::int64_t) {
         return std::vector<NamedValue>{{"model.width", "64"}, {"model.heads", ""}};
       })) {
    CHECK(message.empty());
  }
}

TEST_CASE("The first entry that differs is named on every rank, with both values") {
  const auto all = messages(4, [](std::int64_t rank) {
    return std::vector<NamedValue>{{"model.name", "bdh"},
                                   {"model.width", rank == 2 ? "128" : "64"},
                                   {"train.seed", rank == 1 ? "7" : "8"}};
  });
  for (const auto& message : all) {
    CHECK_THAT(message, Names("ranks 0 and 2", "model.width", "64 on rank 0", "128 on rank 2"));
  }
}

TEST_CASE("A list that is longer or has other names differs") {
  const auto longer = messages(2, [](std::int64_t rank) {
    std::vector<NamedValue> values{{"a", "1"}};
    if (rank == 1) values.emplace_back("b", "2");
    return values;
  });
  for (const auto& message : longer) CHECK_THAT(message, Names("b", "nothing", 2, "rank 1"));
  const auto renamed = messages(2, [](std::int64_t rank) {
    return std::vector<NamedValue>{{rank == 0 ? "a" : "b", "1"}};
  });
  for (const auto& message : renamed) CHECK_THAT(message, Names("a", "b = 1", "rank 1"));
}

// Long tasks on some ranks only.
TEST_CASE("Ranks without a task wait for the rank that has one, and learn of its failure") {
  std::atomic<bool> is_done = false;
  on_threads(3, [&](World& world) {
    const auto group = group_of_all(world);
    std::function<void()> task;
    if (world.rank() == 1) {
      task = [&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
        is_done = true;
      };
    }
    comm::run_long(*group, "working", task);
    expect(is_done, "the others to wait");
    if (world.rank() == 1) task = [] { base::fail(base::ErrorKind::data, "no disk"); };
    const bool is_cause = world.rank() == 1;
    bool is_right = false;
    try {
      comm::run_long(*group, "reading", task);
    } catch (const base::Error& caught) {
      is_right = caught.kind() == (is_cause ? base::ErrorKind::data : base::ErrorKind::comm) &&
                 holds(caught.what(), is_cause ? "no disk" : "reading");
    }
    expect(is_right, "the cause, or the task that failed");
  });
}

// How far the clock of host h is ahead of this machine's.
constexpr std::array kAhead{5s, -3600s, 86'400s};

/// The offset that each rank measures if rank r is on host hosts[r].
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
}  // namespace dtrain::testing::comm_agreement_test
