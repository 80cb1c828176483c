#include "dtrain/kernels/tasks.h"

#include <ATen/Parallel.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "dtrain/base/clock.h"
#include "dtrain/base/host/cpu_list.h"
#include "support/values.h"

namespace dtrain::kernels::tasks_test {
namespace {

using testing::Threads;

// Counts the runs of each task, and checks that no two tasks run as the same worker at once.
std::vector<int> counts_of(std::int64_t tasks) {
  std::vector<std::atomic<int>> counts(static_cast<std::size_t>(tasks));
  std::vector<std::atomic_flag> is_busy(static_cast<std::size_t>(num_workers()));
  std::atomic<bool> shared = false;
  run_tasks(tasks, [&](std::int64_t task, std::int64_t worker) {
    std::atomic_flag& busy = is_busy.at(static_cast<std::size_t>(worker));
    if (busy.test_and_set()) shared = true;
    ++counts.at(static_cast<std::size_t>(task));
    busy.clear();
  });
  CHECK_FALSE(shared);
  return {counts.begin(), counts.end()};
}

TEST_CASE("Each task runs once, and concurrent tasks have different workers") {
  for (const int threads : {1, 2, 3, 4}) {
    const Threads limited(threads);
    for (const std::int64_t tasks : {0, 1, 3, 4, 1000}) {
      CHECK(counts_of(tasks) == std::vector<int>(static_cast<std::size_t>(tasks), 1));
    }
  }
}

TEST_CASE("Thread ranks run tasks concurrently") {
  const Threads limited(3);
  std::atomic<int> done = 0;
  const auto rank = [&] {
    for (int round = 0; round < 200; ++round) {
      run_tasks(8, [&](std::int64_t, std::int64_t) { ++done; });
    }
  };
  {
    const std::jthread first(rank);
    const std::jthread second(rank);
  }
  CHECK(done == 2 * 200 * 8);
}

TEST_CASE("The first exception of a task is thrown, and tasks that have not started are skipped") {
  for (const int threads : {1, 3}) {
    const Threads limited(threads);
    std::atomic<int> begun = 0;
    CHECK_THROWS_WITH(run_tasks(1'000'000,
                                [&](std::int64_t, std::int64_t) {
                                  if (++begun == 3) throw std::runtime_error("third");
                                }),
                      "third");
    CHECK(begun < 1'000'000);
    CHECK(counts_of(10) == std::vector<int>(10, 1));
  }
}

TEST_CASE("Nested tasks run in the outer task's thread, where LibTorch starts no others") {
  const Threads limited(3);
  std::atomic<int> strangers = 0;
  std::atomic<int> inner = 0;
  std::atomic<int> threads = 0;
  run_tasks(6, [&](std::int64_t, std::int64_t) {
    const auto outer = std::this_thread::get_id();
    threads += at::get_num_threads();
    run_tasks(5, [&](std::int64_t, std::int64_t worker) {
      ++inner;
      if (worker != 0 || std::this_thread::get_id() != outer) ++strangers;
    });
  });
  CHECK(inner == 30);
  CHECK(strangers == 0);
  CHECK(threads == 6);
  CHECK(at::get_num_threads() == 3);
  CHECK(num_workers() == 3);
}

TEST_CASE("The same threads run all tasks, for any number of tasks per call") {
  const Threads limited(4);
  std::mutex mutex;
  std::set<pid_t> seen;
  for (int round = 0; round < 50; ++round) {
    for (const std::int64_t tasks : {2, 4, 3}) {
      run_tasks(tasks, [&](std::int64_t, std::int64_t) {
        const auto begin = base::Clock::now();
        while (base::seconds_since(begin) < 50e-6) continue;  // others get some, too
        const std::scoped_lock lock(mutex);
        seen.insert(::gettid());
      });
    }
  }
  CHECK(seen.size() <= 4);
}

// Runs two tasks concurrently and returns the CPU affinity of each one's thread.
std::vector<base::CpuList> places_of_two() {
  std::vector<base::CpuList> places(2);
  std::atomic<int> begun = 0;
  run_tasks(2, [&](std::int64_t, std::int64_t worker) {
    places.at(static_cast<std::size_t>(worker)) = base::affinity_mask();
    const auto begin = base::Clock::now();
    for (++begun; begun < 2 && base::seconds_since(begin) < 60;) std::this_thread::yield();
  });
  CHECK(begun == 2);
  return places;
}

TEST_CASE("Helpers are not bound if OpenMP's threads are not") {
  const Threads limited(2);
  const auto places = places_of_two();
  CHECK(places[1] == places[0]);
}

TEST_CASE("Two threads bound by OpenMP have separate cores", "[.bound]") {
  const Threads limited(2);
  const auto places = places_of_two();
  CHECK(places[0].size() == 1);
  CHECK(places[1].size() == 1);
  CHECK(places[1] != places[0]);
}

// OpenMP reads its variables when it is loaded.
TEST_CASE("Helpers are bound as OpenMP would bind its threads") {
  if (base::affinity_mask().size() < 2) return;  // they would have to share the one
  const std::string program = std::filesystem::read_symlink("/proc/self/exe");
  const std::string command =
      "OMP_PLACES=threads OMP_PROC_BIND=close '" + program + "' '[.bound]' >&2";
  CHECK(std::system(command.c_str()) == 0);
}

}  // namespace
}  // namespace dtrain::kernels::tasks_test
