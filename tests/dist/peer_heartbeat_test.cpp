// Tests that GPU ranks detect through their hosts that another rank has ended.
#include "cuda/nccl/peer_heartbeat.h"

#include <catch2/catch.hpp>
#include <future>

#include "dtrain/base/error.h"
#include "support/messages.h"
#include "support/ranks/local_ranks.h"
#include "support/values.h"

namespace dtrain::cuda::peer_heartbeat_test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// The error reported by one rank's heartbeat, if any.
class Finding {
 public:
  void operator()(const std::exception_ptr& error) { found_.set_value(error); }
  [[nodiscard]] bool exists() { return future_.wait_for(milliseconds(0)) == kReady; }
  [[nodiscard]] std::string text() {
    if (future_.wait_for(seconds(5)) != kReady) return "nothing";
    try {
      std::rethrow_exception(future_.get());
    } catch (const base::Error& error) {
      return error.what();
    }
  }

 private:
  static constexpr auto kReady = std::future_status::ready;
  std::promise<std::exception_ptr> found_;
  std::future<std::exception_ptr> future_ = found_.get_future();
};

TEST_CASE("Ranks that end one after another raise no error") {
  const std::int64_t ranks = GENERATE(2, 3);
  static constexpr seconds kTimeout(2);
  testing::on_threads(ranks,
                      [](comm::World& world) {
                        Finding finding;
                        {
                          const PeerHeartbeat watch(
                              testing::group_of_all(world), kTimeout,
                              [&](const std::exception_ptr& error) { finding(error); });
                          // Heartbeats keep waiting ranks from timing out.
                          std::this_thread::sleep_for(milliseconds(world.rank() * 1200));
                        }
                        testing::expect(!finding.exists(), "no alarm");
                      },
                      {.timeout = kTimeout});
}

TEST_CASE("A rank that aborts ends the heartbeat of all ranks") {
  testing::on_threads(3, [](comm::World& world) {
    Finding finding;
    const std::shared_ptr<comm::ProcessGroup> group = testing::group_of_all(world);
    const PeerHeartbeat watch(group, seconds(20),
                              [&](const std::exception_ptr& error) { finding(error); });
    if (world.rank() == 1) group->abort("rank 1's reason");
    const std::string text = finding.text();
    testing::expect(testing::holds(text, "rank 1's reason"), text);
  });
}

TEST_CASE("An exception on one rank ends the heartbeat of the others") {
  testing::on_threads(2, [](comm::World& world) {
    Finding finding;
    const auto watched = [&] {
      const PeerHeartbeat watch(testing::group_of_all(world), seconds(20),
                                [&](const std::exception_ptr& error) { finding(error); });
      if (world.rank() == 1) throw std::runtime_error("no room");
      const std::string text = finding.text();
      testing::expect(testing::holds(text, "rank 1") && testing::holds(text, "error"), text);
    };
    try {
      watched();
    } catch (const std::runtime_error& error) {
      testing::expect(world.rank() == 1 && error.what() == std::string("no room"), error.what());
    }
  });
}

}  // namespace
}  // namespace dtrain::cuda::peer_heartbeat_test
