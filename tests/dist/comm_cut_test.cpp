// Errors of the survivors when a process dies in the middle of a message.
#include <catch2/catch.hpp>
#include <chrono>
#include <csignal>
#include <functional>
#include <thread>

#include "dtrain/base/error.h"
#include "support/messages.h"
#include "support/ranks/local_ranks.h"

namespace dtrain::testing::comm_cut_test {
namespace {

using comm::World;
using std::chrono::milliseconds;

const std::string kComm = std::to_string(static_cast<int>(base::ErrorKind::comm));

/// Messages larger than socket buffers, so that a stopped rank stops in the middle of one.
std::function<void()> long_call(comm::ProcessGroup& group, const std::string& op) {
  const auto size = static_cast<std::size_t>(group.size());
  if (op == "all_gather_v") {
    const std::vector<std::int64_t> counts{2'000'000, 1'000'000, 0};
    const at::Tensor own = at::ones({counts.at(static_cast<std::size_t>(group.rank()))});
    return [&group, counts, own, all = at::empty({3'000'000})] {
      group.all_gather_v(own, all, counts).wait();
    };
  }
  if (op == "all_to_all") {
    const std::vector<std::int64_t> counts(size, 700'000);
    const at::Tensor parts = at::ones({700'000 * group.size()});
    return [&group, counts, parts, all = at::empty_like(parts)] {
      group.all_to_all(parts, counts, all, counts).wait();
    };
  }
  const at::Tensor tensor = at::ones({std::int64_t{16} << 20});
  if (op == "all_reduce") return [&group, tensor] { group.all_reduce(tensor).wait(); };
  if (group.rank() == 0) return [&group, tensor] { group.recv(tensor, 1).wait(); };
  return [&group, tensor] { group.send(tensor, 0).wait(); };
}

std::string stream_until_failure(World& world, const std::string& op) {
  const auto group = group_of_all(world);
  const std::function<void()> call = long_call(*group, op);
  try {
    call();
    print_progress("started");
    while (true) call();
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

TEST_CASE("A process killed in the middle of a message is detected and named") {
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

TEST_CASE(
    "A process killed during a fast reduction is named although another one is still awaited") {
  RankProcesses processes("stream until failure", options_for(3, "all_reduce"));
  for (const auto rank : {0, 1, 2}) processes.next_line(rank);
  processes.signal(1, SIGSTOP);  // gloo's ring makes rank 0 wait for it
  processes.signal(2, SIGKILL);
  CHECK(processes.next_line(0) == "failed");
  processes.signal(1, SIGKILL);
  const auto failure = processes.wait()[0];
  CHECK_THAT(failure.text, Catch::StartsWith(kComm) && Names("rank 2", "closed"));
}

TEST_CASE("A process killed in the middle of an all-to-all is named by the others") {
  ProcessOptions options = options_for(3, GENERATE("all_gather_v", "all_to_all"));
  options.backend = GENERATE("gloo", "shm");
  options.group.reduction = comm::Reduction::ordered;
  CAPTURE(options.argument, options.backend);
  RankProcesses processes("stream until failure", options);
  const auto [outcomes, seconds_until_end] = processes.kill_at_work(1);
  CHECK(seconds_until_end < 3);
  for (const auto rank : {0U, 2U}) {
    CHECK_THAT(outcomes[rank].text, Catch::StartsWith(kComm) && Names("rank 1", "closed"));
  }
}

}  // namespace
}  // namespace dtrain::testing::comm_cut_test
