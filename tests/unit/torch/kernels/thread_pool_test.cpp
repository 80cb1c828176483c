#include "dtrain/kernels/internal/thread_pool.h"

#include <array>
#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <latch>
#include <thread>

#include "dtrain/base/clock.h"

namespace dtrain::kernels::thread_pool_test {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

constexpr std::chrono::seconds kLimit{60};

// Counts how often each of three workers joined the work.
class Visits {
 public:
  void add(std::int64_t worker) { ++counts_.at(static_cast<std::size_t>(worker)); }
  [[nodiscard]] std::int64_t of(std::int64_t worker) const {
    return counts_.at(static_cast<std::size_t>(worker));
  }

 private:
  std::array<std::atomic<std::int64_t>, 3> counts_{};
};

// Repeats the work until is_enough().
template <typename IsEnough>
void run_until(ThreadPool& pool, const ThreadPool::Work& work, const IsEnough& is_enough) {
  const auto begin = base::Clock::now();
  while (!is_enough()) {
    pool.run(2, work);
    REQUIRE(base::Clock::now() - begin < kLimit);
  }
}

TEST_CASE("Work does not wait for a helper without a core") {
  std::latch gets_core(1);
  Visits visits;
  ThreadPool pool({.workers = 3, .spin = microseconds(10), .begin = [&](std::int64_t worker) {
                     if (worker == 1) gets_core.wait();
                   }});
  const auto work = [&](std::int64_t worker) { visits.add(worker); };
  run_until(pool, work, [&] { return visits.of(0) >= 100 && visits.of(2) >= 3; });
  CHECK(visits.of(1) == 0);
  gets_core.count_down();
  run_until(pool, work, [&] { return visits.of(1) > 0; });
}

void wait_until(const std::atomic<bool>& is_so) {
  const auto begin = base::Clock::now();
  while (!is_so && base::Clock::now() - begin < kLimit) std::this_thread::yield();
}

TEST_CASE("Work ends when all workers that joined have returned, whether threads spin or sleep") {
  for (const milliseconds spin : {milliseconds(0), milliseconds(100)}) {
    ThreadPool pool({.workers = 3, .spin = spin, .begin = {}});
    std::atomic<int> inside = 0;
    std::atomic<bool> all_came = false;
    std::atomic<bool> caller_left = false;
    pool.run(2, [&](std::int64_t worker) {
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

TEST_CASE("The caller sees the helpers' writes, and they see its earlier writes") {
  ThreadPool pool({.workers = 3, .spin = microseconds(10), .begin = {}});
  std::array<std::int64_t, 3> rounds{};  // synchronized by the pool alone
  std::int64_t round = 0;
  const auto work = [&](std::int64_t worker) {
    rounds.at(static_cast<std::size_t>(worker)) = round;
  };
  for (round = 1; round <= 2000; ++round) {
    pool.run(2, work);
    REQUIRE(rounds[0] == round);
  }
  const auto helped = [&] { return rounds[1] > round / 2 && rounds[2] > round / 2; };
  run_until(pool, work, helped);
}

TEST_CASE("No more helpers are woken than requested") {
  Visits visits;
  ThreadPool pool({.workers = 3, .spin = {}, .begin = {}});
  for (int round = 0; round < 100; ++round) {
    pool.run(0, [&](std::int64_t worker) {
      visits.add(worker);
      std::this_thread::sleep_for(microseconds(100));  // time for others to join
    });
  }
  CHECK(visits.of(0) == 100);
  CHECK(visits.of(1) + visits.of(2) == 0);
}

TEST_CASE("A helper preempted during its work is skipped, with exponential back-off") {
  Visits visits;
  ThreadPool pool({.workers = 3, .spin = microseconds(10), .begin = {}});
  const auto work = [&](std::int64_t worker) {
    visits.add(worker);
    if (worker == 1) std::this_thread::sleep_for(milliseconds(1));
  };
  run_until(pool, work, [&] { return visits.of(1) == 1; });
  const auto begin = base::Clock::now();
  run_until(pool, work, [&] { return visits.of(1) == 4; });
  CHECK(base::Clock::now() - begin >= (1 + 2 + 4) * WorkerBackoff::kMinPause);
  CHECK(visits.of(0) > 4);
  run_until(pool, work, [&] { return visits.of(2) > 0; });
}

}  // namespace
}  // namespace dtrain::kernels::thread_pool_test
