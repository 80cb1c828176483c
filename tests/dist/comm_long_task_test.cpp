// Long work that only some ranks have.
#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <thread>

#include "dtrain/base/error.h"
#include "dtrain/comm/exchange.h"
#include "support/local_ranks.h"
#include "support/messages.h"
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

}  // namespace
}  // namespace dtrain::testing::comm_long_task_test
