// The errors of the others over gloo when a process dies in the middle of a message.
#include <catch2/catch.hpp>
#include <chrono>
#include <csignal>
#include <thread>

#include "dtrain/base/error.h"
#include "support/local_ranks.h"
#include "support/messages.h"

namespace dtrain::testing::comm_cut_test {
namespace {

using comm::World;
using std::chrono::milliseconds;

const std::string kComm = std::to_string(static_cast<int>(base::ErrorKind::comm));

/// Messages longer than sockets hold, so that a rank that stops does so in the middle of one.
std::string stream_until_failure(World& world, const std::string& op) {
  const auto group = group_of_all(world);
  const auto tensor = at::ones({std::int64_t{16} << 20});
  print_progress("started");
  try {
    while (true) {
      if (op == "all_reduce") {
        group->all_reduce(tensor).wait();
      } else if (world.rank() == 0) {
        group->recv(tensor, 1).wait();
      } else {
        group->send(tensor, 0).wait();
      }
    }
  } catch (const base::Error& error) {
    print_progress("failed");
    return std::to_string(static_cast<int>(error.kind())) + " " + error.what();
  }
}

const RankProgram stream_program("stream until failure", stream_until_failure);

ProcessOptions options_for(std::int64_t size, const std::string& op) {
  return {.size = size,
          .argument = op,
          .group = {.timeout = std::chrono::seconds(20), .reduction = comm::Reduction::fast}};
}

TEST_CASE("A process killed in the middle of a message is noticed and named") {
  RankProcesses processes("stream until failure", options_for(2, "send"));
  for (const auto rank : {0, 1}) processes.next_line(rank);
  std::this_thread::sleep_for(milliseconds(100));
  processes.signal(0, SIGSTOP);
  std::this_thread::sleep_for(milliseconds(200));  // the sockets fill up
  processes.signal(1, SIGKILL);
  processes.signal(0, SIGCONT);
  const auto failure = processes.wait()[0];
  CHECK_THAT(failure.text, Catch::StartsWith(kComm) && Names("rank 1", "closed"));
}

TEST_CASE("A process killed during a fast reduction is named though another one is still awaited") {
  RankProcesses processes("stream until failure", options_for(3, "all_reduce"));
  for (const auto rank : {0, 1, 2}) processes.next_line(rank);
  processes.signal(1, SIGSTOP);  // gloo's ring makes rank 0 wait for it
  processes.signal(2, SIGKILL);
  CHECK(processes.next_line(0) == "failed");
  processes.signal(1, SIGKILL);
  const auto failure = processes.wait()[0];
  CHECK_THAT(failure.text, Catch::StartsWith(kComm) && Names("rank 2", "closed"));
}

}  // namespace
}  // namespace dtrain::testing::comm_cut_test
