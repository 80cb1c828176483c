#include "dtrain/kernels/internal/crew.h"

#include <array>
#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <latch>
#include <thread>

#include "dtrain/base/clock.h"

namespace dtrain::kernels::crew_test {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

constexpr std::chrono::seconds kLimit{60};

// How often each of three workers has come.
class Visits {
 public:
  void add(std::int64_t worker) { ++counts_.at(static_cast<std::size_t>(worker)); }
  [[nodiscard]] std::int64_t of(std::int64_t worker) const {
    return counts_.at(static_cast<std::size_t>(worker));
  }

 private:
  std::array<std::atomic<std::int64_t>, 3> counts_{};
};

// Until is_enough(), with more work each time.
template <typename IsEnough>
void run_until(Crew& crew, const Crew::Work& work, const IsEnough& is_enough) {
  const auto begin = base::Clock::now();
  while (!is_enough()) {
    crew.run(2, work);
    REQUIRE(base::Clock::now() - begin < kLimit);
  }
}

TEST_CASE("Work ends without a helper that gets no core") {
  std::latch gets_core(1);
  Visits visits;
  Crew crew({.workers = 3, .spin = microseconds(10), .begin = [&](std::int64_t worker) {
               if (worker == 1) gets_core.wait();
             }});
  const auto work = [&](std::int64_t worker) { visits.add(worker); };
  run_until(crew, work, [&] { return visits.of(0) >= 100 && visits.of(2) >= 3; });
  CHECK(visits.of(1) == 0);
  gets_core.count_down();
  run_until(crew, work, [&] { return visits.of(1) > 0; });
}

void wait_until(const std::atomic<bool>& is_so) {
  const auto begin = base::Clock::now();
  while (!is_so && base::Clock::now() - begin < kLimit) std::this_thread::yield();
}

TEST_CASE("Work ends after all that came have returned, whether threads spin or sleep") {
  for (const milliseconds spin : {milliseconds(0), milliseconds(100)}) {
    Crew crew({.workers = 3, .spin = spin, .begin = {}});
    std::atomic<int> inside = 0;
    std::atomic<bool> all_came = false;
    std::atomic<bool> caller_left = false;
    crew.run(2, [&](std::int64_t worker) {
      if (++inside == 3) all_came = true;
      wait_until(worker == 0 ? all_came : caller_left);
      std::this_thread::sleep_for(worker * milliseconds(1));
      --inside;
      if (worker == 0) caller_left = true;
    });
    CHECK(all_came);
    CHECK(inside == 0);
  }
}

TEST_CASE("The caller sees what helpers did, and they what it did before") {
  Crew crew({.workers = 3, .spin = microseconds(10), .begin = {}});
  std::array<std::int64_t, 3> rounds{};  // which the crew alone protects
  std::int64_t round = 0;
  const auto work = [&](std::int64_t worker) {
    rounds.at(static_cast<std::size_t>(worker)) = round;
  };
  for (round = 1; round <= 2000; ++round) {
    crew.run(2, work);
    REQUIRE(rounds[0] == round);
  }
  const auto helped = [&] { return rounds[1] > round / 2 && rounds[2] > round / 2; };
  run_until(crew, work, helped);
}

TEST_CASE("No more helpers are called than asked for") {
  Visits visits;
  Crew crew({.workers = 3, .spin = {}, .begin = {}});
  for (int round = 0; round < 100; ++round) {
    crew.run(0, [&](std::int64_t worker) {
      visits.add(worker);
      std::this_thread::sleep_for(microseconds(100));  // others would come
    });
  }
  CHECK(visits.of(0) == 100);
  CHECK(visits.of(1) + visits.of(2) == 0);
}

TEST_CASE("A helper that lost its core in the middle of its work is left out, longer each time") {
  Visits visits;
  Crew crew({.workers = 3, .spin = microseconds(10), .begin = {}});
  const auto work = [&](std::int64_t worker) {
    visits.add(worker);
    if (worker == 1) std::this_thread::sleep_for(milliseconds(1));
  };
  run_until(crew, work, [&] { return visits.of(1) == 1; });
  const auto begin = base::Clock::now();
  run_until(crew, work, [&] { return visits.of(1) == 4; });
  CHECK(base::Clock::now() - begin >= (1 + 2 + 4) * Rest::kShortest);
  CHECK(visits.of(0) > 4);
  run_until(crew, work, [&] { return visits.of(2) > 0; });
}

}  // namespace
}  // namespace dtrain::kernels::crew_test
