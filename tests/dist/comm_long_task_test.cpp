// Long work that only some ranks have.
#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <thread>

#include "dtrain/base/error.h"
#include "dtrain/comm/long_task.h"
#include "support/local_ranks.h"
#include "support/values.h"

namespace dtrain::testing::comm_long_task_test {
namespace {

using comm::World;

TEST_CASE("Ranks without a task wait for the one that has it, and hear that it failed") {
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
    if (world.rank() == 1) task = [] { base::fail(base::ErrorKind::data, "the disk is gone"); };
    std::string error;
    try {
      comm::run_long(*group, "reading", task);
    } catch (const base::Error& caught) {
      error = caught.what();
    }
    expect(error.find(world.rank() == 1 ? "the disk is gone" : "another rank failed at reading") !=
               std::string::npos,
           "the failure's words");
  });
}

}  // namespace
}  // namespace dtrain::testing::comm_long_task_test
