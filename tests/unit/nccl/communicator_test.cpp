// Tests how a communicator handles NCCL's undocumented behaviour.
#include "cuda/nccl/communicator.h"

#include <array>
#include <catch2/catch.hpp>
#include <future>
#include <thread>

#include "unit/nccl/nccl_model.h"

namespace dtrain::cuda::communicator_test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using Cause = TransportFailure::Cause;

const base::Deadline& later() {
  static const base::Deadline deadline{seconds(60)};
  return deadline;
}

std::shared_ptr<Communicator> joined() {
  testing::let_peers_come();
  auto made = std::make_shared<Communicator>();
  made->join({}, {0, 2}, later());
  return made;
}

// Enqueues a kernel that waits for a peer forever.
void start_kernel(Communicator& communicator) {
  communicator.enqueue(
      [](ncclComm_t group) {
        return ncclAllReduce(nullptr, nullptr, 1, ncclFloat32, ncclSum, group, nullptr);
      },
      later());
}

// Returns the failure of `call`.
template <typename Call>
TransportFailure failure_of(const Call& call) {
  try {
    call();
  } catch (const TransportFailure& failure) {
    return failure;
  }
  return {Cause::failed, {}, "nothing"};
}

TEST_CASE("Communicators whose kernels run are aborted without waiting for each other") {
  testing::reset_nccl();
  const std::array both{joined(), joined()};
  for (const auto& each : both) start_kernel(*each);
  abort_together(both);
  CHECK_FALSE(testing::nccl_notes().would_hang);
  CHECK(testing::nccl_notes().aborted == 2);
  CHECK(failure_of([&] { start_kernel(*both[0]); }).cause() == Cause::closed);
  abort_together(both);  // a second abort is a no-op
  CHECK(testing::nccl_notes().aborted == 2);
}

TEST_CASE("Communicators for messages use few multiprocessors") {
  testing::reset_nccl();
  const auto any = joined();
  CHECK(testing::nccl_notes().most_blocks == 64);
  const auto messages = std::make_shared<Communicator>();
  messages->join({}, {0, 2}, later(), CommunicatorUse::messages);
  CHECK(testing::nccl_notes().most_blocks == 4);
}

TEST_CASE("An idle communicator is destroyed") {
  testing::reset_nccl();
  joined().reset();
  CHECK(testing::nccl_notes().destroyed == 1);
  CHECK(testing::nccl_notes().aborted == 0);
}

TEST_CASE("A split communicator is ready when the call returns") {
  testing::reset_nccl();
  const auto parent = joined();
  CHECK(parent->split(NCCL_SPLIT_NOCOLOR, 0, later()) == nullptr);
  const auto child = parent->split(0, 0, later());
  start_kernel(*child);
  CHECK(child->poll().empty());
  CHECK(testing::nccl_notes().made == 2);
  abort_together({&child, 1});
}

TEST_CASE("Waiting for peers ends at the deadline") {
  testing::reset_nccl();
  auto alone = std::make_shared<Communicator>();
  const TransportFailure late = failure_of([&] {
    alone->join({}, {0, 2}, base::Deadline(milliseconds(30)));
  });
  CHECK(late.cause() == Cause::no_answer);
  alone.reset();
  CHECK(testing::nccl_notes().aborted == 1);
}

TEST_CASE("Another thread can abort the wait for peers") {
  testing::reset_nccl();
  const auto alone = std::make_shared<Communicator>();
  auto waiting = std::async(std::launch::async, [&] {
    return failure_of([&] { alone->join({}, {0, 2}, later()); });
  });
  while (testing::nccl_notes().made == 0) std::this_thread::yield();
  abort_together({&alone, 1});
  REQUIRE(waiting.wait_for(seconds(5)) == std::future_status::ready);
  CHECK(waiting.get().cause() == Cause::closed);
  // A communicator that was aborted before joining does not wait either.
  const auto later_one = std::make_shared<Communicator>();
  abort_together({&later_one, 1});
  CHECK(failure_of([&] { later_one->join({}, {0, 2}, later()); }).cause() == Cause::closed);
}

TEST_CASE("A handle that NCCL writes after an abort is not used") {
  testing::reset_nccl();
  auto alone = std::make_shared<Communicator>();
  auto waiting = std::async(std::launch::async, [&] {
    return failure_of([&] { alone->join({}, {0, 2}, later()); });
  });
  while (testing::nccl_notes().made == 0) std::this_thread::yield();
  abort_together({&alone, 1});  // returns when NCCL's thread has written it
  CHECK(waiting.get().cause() == Cause::closed);
  CHECK(alone->poll().empty());
  CHECK(failure_of([&] { start_kernel(*alone); }).cause() == Cause::closed);
  alone.reset();
  CHECK(testing::nccl_notes().freed_uses == 0);
  CHECK(testing::nccl_notes().aborted == 1);
  CHECK(testing::nccl_notes().destroyed == 0);
}

TEST_CASE("An abort ends a split, whose handle NCCL may write later") {
  testing::reset_nccl();
  auto parent = joined();
  testing::reset_nccl();  // the next peers never arrive
  auto waiting = std::async(
      std::launch::async, [&] { return failure_of([&] { (void)parent->split(0, 0, later()); }); });
  std::this_thread::sleep_for(milliseconds(20));
  abort_together({&parent, 1});
  REQUIRE(waiting.wait_for(seconds(5)) == std::future_status::ready);
  CHECK(waiting.get().cause() == Cause::closed);
  parent.reset();
  CHECK(testing::nccl_notes().freed_uses == 0);
  CHECK(testing::nccl_notes().aborted == 1);
}

TEST_CASE("NCCL's error message is reported in one line") {
  testing::reset_nccl();
  const auto one = joined();
  const TransportFailure failure =
      failure_of([&] { one->enqueue([](ncclComm_t) { return ncclSystemError; }, later()); });
  CHECK(failure.cause() == Cause::failed);
  CHECK(std::string(failure.what()) == "NCCL: unhandled system error: socket.cc says more");
}

}  // namespace
}  // namespace dtrain::cuda::communicator_test
