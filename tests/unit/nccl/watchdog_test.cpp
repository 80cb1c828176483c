// Tests that the failure of one group ends all groups of a rank.
#include "cuda/nccl/watchdog.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include <catch2/catch.hpp>
#include <future>
#include <thread>

#include "dtrain/base/error.h"
#include "support/fake_device/counters.h"
#include "support/fake_device/fake_device.h"
#include "support/ranks/stub_group.h"
#include "unit/nccl/nccl_model.h"

namespace dtrain::cuda::watchdog_test {
namespace {

namespace fake = testing::fake;
using std::chrono::milliseconds;
using std::chrono::seconds;

// A host group that records the abort reason for the other ranks.
class Host final : public testing::StubGroup {
 public:
  void abort(const std::string& reason) noexcept override { said.set_value(reason); }
  std::promise<std::string> said;
};

// A group of two ranks.
GroupConfig config_of(const std::string& name, c10::Device device) {
  return {.identity = {.name = name, .world_ranks = {0, 1}}, .options = {}, .device = device};
}

// A group of two ranks whose kernel waits for the peer forever.
struct Group {
  Group() {
    testing::let_peers_come();
    const base::Deadline later{seconds(60)};
    communicator->join({}, {0, 2}, later);
    communicator->enqueue(
        [](ncclComm_t group) {
          return ncclAllReduce(nullptr, nullptr, 1, ncclFloat32, ncclSum, group, nullptr);
        },
        later);
    state->add(communicator);
  }

  std::shared_ptr<Host> host = std::make_shared<Host>();
  std::shared_ptr<Communicator> communicator = std::make_shared<Communicator>();
  std::shared_ptr<GroupState> state =
      std::make_shared<GroupState>(config_of("some", c10::kCPU), host);
};

std::string error_of(GroupState& group) {
  try {
    group.error().rethrow();
  } catch (const base::Error& error) {
    return error.what();
  }
  return "nothing";
}

bool comes(const std::function<bool()>& condition) {
  const base::Deadline deadline{seconds(5)};
  while (!condition() && !deadline.passed()) std::this_thread::sleep_for(milliseconds(1));
  return condition();
}

TEST_CASE("If a group of a rank fails, all are aborted together and their peers are informed") {
  testing::reset_nccl();
  Group one;
  Group other;
  Watchdog watchdog(c10::kCPU);
  watchdog.add(one.state);
  watchdog.add(other.state);
  other.state->error().set("enough");
  REQUIRE(comes([] { return testing::nccl_notes().aborted == 2; }));
  CHECK_FALSE(testing::nccl_notes().would_hang);
  for (const auto& each : {&one, &other}) {
    CHECK(error_of(*each->state) == "group 'some': enough");
    CHECK(each->host->said.get_future().get() == "group 'some': enough");
  }

  Group late;
  watchdog.add(late.state);
  REQUIRE(comes([] { return testing::nccl_notes().aborted == 3; }));
  CHECK(error_of(*late.state) == "group 'some': enough");
}

TEST_CASE("A peer's death ends the wait for it") {
  testing::reset_nccl();
  const auto host = std::make_shared<Host>();
  const auto state = std::make_shared<GroupState>(config_of("all", c10::kCPU), host);
  Watchdog watchdog(c10::kCPU);
  watchdog.add(state);
  const auto communicator = std::make_shared<Communicator>();
  state->add(communicator);
  auto waiting = std::async(std::launch::async, [&] {
    communicator->join({}, {0, 2}, base::Deadline(seconds(60)));
  });
  while (testing::nccl_notes().made == 0) std::this_thread::yield();
  watchdog.fail_all(
      std::make_exception_ptr(base::Error(base::ErrorKind::comm, "rank 1 is no more")));
  REQUIRE(waiting.wait_for(seconds(5)) == std::future_status::ready);
  CHECK_THROWS_AS(waiting.get(), TransportFailure);
  CHECK(error_of(*state) == "rank 1 is no more");
}

TEST_CASE("Recording completions creates no context on another device") {
  fake::install();
  const c10::Device own(fake::kType, 1);
  const auto state = std::make_shared<GroupState>(config_of("all", own), std::make_shared<Host>());
  comm::CallRecord record;
  record.op = "all_reduce";
  record.number = state->ring().add(record);
  auto call = std::make_shared<DeviceCall>(record, state);
  const c10::Stream stream = c10::impl::VirtualGuardImpl(fake::kType).getNewStream(own);
  call->begin_on(stream, {});
  call->end_on(stream);
  state->watch(stream, std::move(call));
  fake::reset_counters(0);
  std::thread([&] { state->record_completions(); }).join();
  CHECK_FALSE(state->has_pending());
  CHECK(fake::counters(0).selections == 0);
}

TEST_CASE("A communicator added to an ended group is aborted") {
  testing::reset_nccl();
  Group group;
  group.state->error().set("enough");
  abort_together(group.state->end());
  const auto late = std::make_shared<Communicator>();
  group.state->add(late);
  CHECK_THROWS_AS(late->join({}, {0, 2}, base::Deadline(seconds(60))), TransportFailure);
  CHECK(testing::nccl_notes().made == 1);
}

}  // namespace
}  // namespace dtrain::cuda::watchdog_test
