// Errors of the other ranks when a rank is late, dies, aborts or was started incorrectly.
#include <unistd.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <condition_variable>
#include <csignal>
#include <latch>
#include <thread>

#include "dtrain/base/error.h"
#include "dtrain/net/socket.h"
#include "support/messages.h"
#include "support/ranks/local_ranks.h"
#include "support/ranks/port_of.h"
#include "support/values.h"

namespace dtrain::testing::comm_failure_test {
namespace {

using base::ErrorKind;
using Catch::Contains;
using comm::GroupOptions;
using comm::World;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr milliseconds kShort(6000);         // a deadline, long enough for processes to start
constexpr const char* kShortText = "6.0 s";  // as in messages
constexpr double kSlack = 4.0;               // seconds after the deadline

struct Failure {
  int kind = 0;
  std::string message;
  double seconds = 0;
};

/// Runs `action`, which must fail.
template <typename Action>
Failure failure_of(Action&& action) {
  const auto start = base::Clock::now();
  try {
    action();
  } catch (const base::Error& error) {
    return {static_cast<int>(error.kind()), error.what(), base::seconds_since(start)};
  }
  throw std::runtime_error("expected an error");
}

std::string packed(const Failure& failure) {
  return fmt::format("{} {:.3f} {}", failure.kind, failure.seconds, failure.message);
}

Failure unpacked(const RankOutcome& outcome) {
  INFO(outcome.text << " / " << outcome.standard_error);
  REQUIRE(outcome.status == 0);
  CHECK(outcome.errors().empty());  // LibTorch's own messages do not reach the user
  const auto space = outcome.text.find(' ', 3);
  return {std::stoi(outcome.text), outcome.text.substr(space + 1),
          std::stod(outcome.text.substr(outcome.text.find(' ')))};
}

/// Blocks a rank that never arrives; the test kills it.
void stay_away() { std::this_thread::sleep_for(seconds(60)); }

/// Jobs whose last rank never arrives. They wait for their deadlines concurrently.
class LateJobs {
 public:
  /// Returns after the rendezvous of all ranks.
  void start(const std::string& program, ProcessOptions options) {
    options.group.timeout = kShort;
    jobs_.push_back(std::make_unique<RankProcesses>(program, options));
    size_ = options.size;
    for (std::int64_t rank = 0; rank < size_; ++rank) {
      if (jobs_.back()->next_line(rank) != "met") throw std::runtime_error("not met");
    }
  }
  /// The outcomes of each job, whose last rank is killed once the others have failed.
  std::vector<std::vector<RankOutcome>> wait() {
    std::vector<std::vector<RankOutcome>> all;
    for (auto& job : jobs_) {
      for (std::int64_t rank = 0; rank + 1 < size_; ++rank) (void)job->next_line(rank);
      job->signal(size_ - 1, SIGKILL);
      all.push_back(job->wait());
    }
    return all;
  }

 private:
  std::vector<std::unique_ptr<RankProcesses>> jobs_;
  std::int64_t size_ = 0;
};

void check_late(const Failure& failure, const std::string& culprit) {
  CAPTURE(failure.message);
  CHECK(failure.kind == static_cast<int>(ErrorKind::timeout));
  CHECK_THAT(failure.message, Names(culprit, kShortText, "--comm-timeout"));
  CHECK(failure.seconds > 0.95 * base::Seconds(kShort).count());
  CHECK(failure.seconds < base::Seconds(kShort).count() + kSlack);
  CHECK(failure.message.find('\n') == std::string::npos);
}

// --- a rank that never arrives -------------------------------------------------------------------

TEST_CASE("A thread that never arrives is named at the deadline") {
  std::vector<Failure> failures(3);
  std::latch ready(2);
  on_threads(3,
             [&](World& world) {
               const auto group = group_of_all(world);
               if (world.rank() == 2) {
                 ready.wait();
                 return;
               }
               const auto tensor = at::ones({1000});
               failures[static_cast<std::size_t>(world.rank())] =
                   failure_of([&] { group->all_reduce(tensor).wait(); });
               ready.count_down();
             },
             {.timeout = kShort});
  // Both waited equally long; the first to time out notifies the other.
  const auto& first =
      failures[0].kind == static_cast<int>(ErrorKind::timeout) ? failures[0] : failures[1];
  check_late(first, "rank 2");
  CHECK_THAT(first.message, Names("call 1", "all_reduce", 1000, "float32", "4000 bytes"));
  for (const auto rank : {0u, 1u}) CHECK_THAT(failures[rank].message, Names("rank 2"));
}

std::string late_rank(World& world, const std::string& count) {
  const auto group = group_of_all(world);
  group->barrier();
  print_progress("met");
  if (world.rank() == 2) stay_away();
  const auto tensor = at::ones({std::stoll(count)});
  const auto failure = failure_of([&] { group->all_reduce(tensor).wait(); });
  print_progress("failed");
  const auto again = failure_of([&] { group->barrier(); });
  expect(again.message == failure.message && again.seconds < 3, "the same error at once");
  return packed(failure);
}

const RankProgram late("late rank", late_rank);

TEST_CASE("A process that never arrives is named at the deadline") {
  LateJobs jobs;
  const std::vector<std::string> backends{"gloo", "shm", "gloo", "shm"};
  for (std::size_t i = 0; i < backends.size(); ++i) {
    jobs.start("late rank",
               {.size = 3, .argument = i < 2 ? "100" : "1000000", .backend = backends[i]});
  }
  const auto outcomes = jobs.wait();
  for (std::size_t i = 0; i < backends.size(); ++i) {
    CAPTURE(i, backends[i]);
    Failure first = unpacked(outcomes[i][0]);
    Failure second = unpacked(outcomes[i][1]);
    if (first.kind != static_cast<int>(ErrorKind::timeout)) std::swap(first, second);
    check_late(first, "rank 2");
    if (second.kind == static_cast<int>(ErrorKind::timeout)) {
      check_late(second, "rank 2");
    } else {  // over shm the first to time out notifies the other
      CHECK(backends[i] == "shm");
      CHECK_THAT(second.message, Names("rank 2", kShortText, "--comm-timeout"));
    }
  }
}

std::string late_fast(World& world, const std::string&) {
  const auto group = group_of_all(world);
  group->barrier();
  print_progress("met");
  if (world.rank() == 1) stay_away();
  const auto failure = failure_of([&] { group->all_reduce(at::ones({1000})).wait(); });
  print_progress("failed");
  return packed(failure);
}

const RankProgram fast_late("late rank, fast", late_fast);

TEST_CASE("The fast reduction has a deadline too") {
  LateJobs jobs;
  jobs.start("late rank, fast", {.size = 2, .group = {.reduction = comm::Reduction::fast}});
  check_late(unpacked(jobs.wait()[0][0]), "a peer");
}

std::string receive_nothing(World& world, const std::string& op) {
  const auto group = group_of_all(world);
  const std::vector<std::int64_t> two(2, 2);
  const auto parts = at::ones({4});
  if (op == "all_to_all") group->barrier();
  print_progress("met");
  if (world.rank() == 1) stay_away();
  const auto failure = failure_of([&] {
    if (op == "recv") group->recv(at::ones({4}), 1).wait();
    group->all_to_all(parts, two, at::empty({4}), two).wait();
  });
  print_progress("failed");
  return packed(failure);
}

const RankProgram nothing_sent("receive nothing", receive_nothing);

TEST_CASE("Waiting for a message that is never sent times out") {
  const std::string op = GENERATE("recv", "all_to_all");
  LateJobs jobs;
  for (const std::string backend : {"gloo", "shm"}) {
    jobs.start("receive nothing", {.size = 2, .argument = op, .backend = backend});
  }
  for (const auto& outcomes : jobs.wait()) {
    const auto failure = unpacked(outcomes[0]);
    check_late(failure, "rank 1");
    CHECK_THAT(failure.message, Names(op, 4, "float32", "16 bytes"));
  }
}

// --- a rank that dies --------------------------------------------------------------------------

std::string reduce_until_failure(World& world, const std::string& count) {
  const auto group = group_of_all(world);
  const auto tensor = at::ones({std::stoll(count)});
  group->all_reduce(tensor).wait();
  print_progress("started");
  const auto failure = failure_of([&] {
    while (true) group->all_reduce(tensor).wait();
  });
  print_progress("failed");
  return packed(failure);
}

const RankProgram until_failure("reduce until failure", reduce_until_failure);

TEST_CASE("A killed process is detected at once and named") {
  const std::string count = GENERATE("100", "4000000");
  const auto [backend, reduction] =
      GENERATE(table<std::string, comm::Reduction>({{"gloo", comm::Reduction::ordered},
                                                    {"gloo", comm::Reduction::fast},
                                                    {"shm", comm::Reduction::ordered}}));
  CAPTURE(count, backend);
  const auto timeout = seconds(20);
  RankProcesses processes("reduce until failure",
                          {.size = 3,
                           .argument = count,
                           .backend = backend,
                           .group = {.timeout = timeout, .reduction = reduction}});
  const auto [outcomes, seconds_until_end] = processes.kill_at_work(1);
  CHECK(seconds_until_end < 3);
  CHECK(outcomes[1].status == 128 + SIGKILL);
  for (const auto rank : {0u, 2u}) {
    const auto failure = unpacked(outcomes[rank]);
    CAPTURE(failure.message);
    CHECK(failure.kind == static_cast<int>(ErrorKind::comm));
    // Not the other survivor, which may have noticed first and closed its connections.
    CHECK_THAT(failure.message, Names("rank 1", "closed"));
  }
}

TEST_CASE("A stopped process is named at the deadline") {
  const std::string backend = GENERATE("gloo", "shm");
  RankProcesses processes(
      "reduce until failure",
      {.size = 2, .argument = "1000000", .backend = backend, .group = {.timeout = kShort}});
  for (const auto rank : {0, 1}) processes.next_line(rank);
  processes.signal(1, SIGSTOP);
  (void)processes.next_line(0);  // it has failed
  processes.signal(1, SIGKILL);
  const auto failure = unpacked(processes.wait()[0]);
  CHECK(failure.kind == static_cast<int>(ErrorKind::timeout));
  CHECK_THAT(failure.message, Names("rank 1", kShortText, "--comm-timeout"));
}

// --- a rank that aborts ------------------------------------------------------------------------

TEST_CASE("The first exception of a thread ends all ranks and is the one rethrown") {
  const auto start = base::Clock::now();
  std::vector<std::string> seen(4);
  CHECK_THROWS_WITH(on_threads(4,
                               [&](World& world) {
                                 const auto group = group_of_all(world);
                                 group->barrier();
                                 if (world.rank() == 2) throw std::runtime_error("rank 2's reason");
                                 try {
                                   group->barrier();
                                 } catch (const base::Error& error) {
                                   seen[static_cast<std::size_t>(world.rank())] = error.what();
                                   throw;
                                 }
                               }),
                    "rank 2's reason");
  CHECK(base::seconds_since(start) < 5);
  for (const auto rank : {0u, 1u, 3u}) CHECK_THAT(seen[rank], Contains("rank 2's reason"));
}

TEST_CASE("An error of communication yields to its cause, even if it is reported first") {
  std::atomic<bool> has_failed = false;
  CHECK_THROWS_WITH(
      on_threads(2,
                 [&](World& world) {
                   if (world.rank() == 1) {
                     has_failed = true;
                     base::fail(ErrorKind::comm, "rank 0 failed");
                   }
                   while (!has_failed) std::this_thread::yield();
                   std::this_thread::sleep_for(milliseconds(100));  // until rank 1's is kept
                   base::fail(ErrorKind::usage, "rank 0's reason");
                 }),
      Contains("rank 0's reason"));
}

/// Rank 1 exits; rank 0 alone waits for it and fails, which fails rank 2, which waits for rank 0.
std::string blame_chain(World& world, const std::string&) {
  const auto group = group_of_all(world);
  group->barrier();
  if (world.rank() == 1) ::_exit(0);
  if (world.rank() == 0) std::this_thread::sleep_for(milliseconds(200));
  const std::int64_t awaited = world.rank() == 0 ? 1 : 0;
  return packed(failure_of([&] { group->recv(at::ones({5}), awaited).wait(); }));
}

const RankProgram blame_program("blame chain", blame_chain);

TEST_CASE("A rank that fails because of another names it, and is not blamed") {
  const std::string backend = GENERATE("gloo", "shm");
  const auto outcomes = on_processes("blame chain", {.size = 3, .backend = backend});
  for (const auto rank : {0u, 2u}) {
    const auto failure = unpacked(outcomes[rank]);
    CHECK_THAT(failure.message, Names("rank 1", "closed"));
  }
}

std::string abort_while_waiting(World& world, const std::string& op) {
  const auto group = group_of_all(world);
  group->barrier();
  const auto tensor = at::ones({1000});
  if (world.rank() == 1) {
    return packed(failure_of([&] { group->all_reduce(tensor).wait(); }));
  }
  const auto buffer = at::ones({10});
  comm::Work pending = op == "recv" ? group->recv(buffer, 1) : group->recv(tensor, 1);
  std::this_thread::sleep_for(milliseconds(200));
  group->abort("stopped on request");
  const auto failure = failure_of([&] { pending.wait(); });
  expect(failure_of([&] { group->barrier(); }).seconds < 3, "later calls to fail at once");
  return packed(failure);
}

const RankProgram abort_program("abort while waiting", abort_while_waiting);

void check_aborted(const Failure& own, const Failure& peer) {
  CAPTURE(own.message, peer.message);
  CHECK(own.kind == static_cast<int>(ErrorKind::comm));
  CHECK_THAT(own.message, Contains("stopped on request"));
  CHECK(own.seconds < 3);
  CHECK(peer.kind == static_cast<int>(ErrorKind::comm));
  CHECK(peer.seconds < 3);
}

TEST_CASE("An aborted group ends its own calls with the reason, and those of its peers") {
  for (const std::string backend : {"gloo", "shm"}) {
    const auto outcomes =
        on_processes("abort while waiting", {.size = 2, .argument = "recv", .backend = backend});
    const auto peer = unpacked(outcomes[1]);
    check_aborted(unpacked(outcomes[0]), peer);
    CHECK_THAT(peer.message, Names("rank 0", "closed"));
    if (backend == "shm") CHECK_THAT(peer.message, Contains("stopped on request"));
  }

  std::vector<std::string> texts(2);
  on_threads(2, [&](World& world) {
    texts[static_cast<std::size_t>(world.rank())] = abort_while_waiting(world, "recv");
  });
  RankOutcome own{.status = 0, .text = texts[0], .standard_error = {}, .seconds = 0};
  RankOutcome other{.status = 0, .text = texts[1], .standard_error = {}, .seconds = 0};
  check_aborted(unpacked(own), unpacked(other));
  CHECK_THAT(texts[1], Contains("stopped on request"));
}

std::string drop_with_calls_pending(World& world, const std::string&) {
  auto group = group_of_all(world);
  group->barrier();
  const auto start = base::Clock::now();
  if (world.rank() == 0) {
    comm::Work work = group->all_reduce(at::ones({100}));
    comm::Work message = group->recv(at::ones({100}), 1);
    group.reset();
    expect(base::seconds_since(start) < 2, "a quick end");
    failure_of([&] { work.wait(); });
    failure_of([&] { message.wait(); });
  } else {
    std::this_thread::sleep_for(milliseconds(300));
  }
  return {};
}

const RankProgram drop_program("drop with calls pending", drop_with_calls_pending);

TEST_CASE("A group can be destroyed while calls are in flight") {
  const std::string backend = GENERATE("gloo", "shm");
  for (const auto& outcome :
       on_processes("drop with calls pending", {.size = 2, .backend = backend})) {
    INFO(outcome.text);
    CHECK(outcome.status == 0);
  }
  on_threads(2, [](World& world) { drop_with_calls_pending(world, ""); });
}

// --- ranks started incorrectly -----------------------------------------------------------------

std::string nothing_to_do(World&, const std::string&) { return {}; }
const RankProgram nothing("nothing", nothing_to_do);

TEST_CASE("Ranks that were told different world sizes are refused by name") {
  for (const auto& outcome : on_processes("nothing", {.size = 2, .world_sizes = {2, 3}})) {
    CHECK(outcome.status == static_cast<int>(ErrorKind::usage));
    CHECK_THAT(outcome.text, Names("rank 0", "rank 1", 2, 3, "WORLD_SIZE"));
    CHECK(outcome.errors().empty());
  }
}

TEST_CASE("A rank that was never started is named by all waiting ranks") {
  const auto outcomes =
      on_processes("nothing", {.size = 3, .group = {.timeout = kShort}, .absent = {2}});
  for (const auto rank : {0u, 1u}) {
    INFO(outcomes[rank].text);
    CHECK(outcomes[rank].status == static_cast<int>(ErrorKind::timeout));
    CHECK_THAT(outcomes[rank].text, Names("rank 2", "3 ranks", kShortText, "--comm-timeout"));
  }
  CHECK_THAT(outcomes[0].standard_error, Names("rank 2", "--comm-timeout"));
}

TEST_CASE("Two processes with the same rank are rejected") {
  const int probe = net::listen_at("127.0.0.1", 0);
  comm::WorldOptions options{.backend = "gloo", .size = 3, .group = {.timeout = seconds(5)}};
  options.master_port = port_of(probe);
  ::close(probe);
  std::vector<Failure> failures(3);
  {
    std::vector<std::jthread> threads;
    for (const auto index : {0u, 1u, 2u}) {
      threads.emplace_back([&failures, options, index]() mutable {
        options.rank = index == 2 ? 1 : index;
        failures[index] = failure_of([&] { (void)comm::create_world(options); });
      });
    }
  }
  for (const auto& failure : failures) {
    CHECK(failure.kind == static_cast<int>(ErrorKind::usage));
    CHECK_THAT(failure.message, Names("two", "rank 1", 3, "RANK"));
  }
}

TEST_CASE("The address of a store that does not answer is named") {
  const int silent = net::listen_at("127.0.0.1", 0);
  const auto port = port_of(silent);
  ::close(silent);  // nobody listens there now
  const auto failure = failure_of([&] {
    (void)comm::create_world({.backend = "gloo",
                              .rank = 1,
                              .size = 2,
                              .master_port = port,
                              .group = {.timeout = kShort}});
  });
  CHECK(failure.kind == static_cast<int>(ErrorKind::timeout));
  CHECK_THAT(failure.message,
             Contains(fmt::format("127.0.0.1:{}", port)) && Contains("Connection refused"));
  CHECK(failure.seconds < base::Seconds(kShort).count() + kSlack);
}

TEST_CASE("A port that is taken is named") {
  const int taken = net::listen_at("127.0.0.1", 0);
  const auto port = port_of(taken);
  const auto failure = failure_of([&] {
    (void)comm::create_world({.backend = "gloo",
                              .rank = 0,
                              .size = 2,
                              .master_port = port,
                              .group = {.timeout = kShort}});
  });
  ::close(taken);
  CHECK(failure.kind == static_cast<int>(ErrorKind::port));
  CHECK_THAT(failure.message, Names(port, "MASTER_PORT"));
}

TEST_CASE("An unknown backend is rejected with the choices") {
  const auto failure = failure_of([] { (void)comm::create_world({.backend = "smoke"}); });
  CHECK(failure.kind == static_cast<int>(ErrorKind::usage));
  CHECK_THAT(failure.message, Contains("'smoke'") && Contains("gloo"));
  CHECK_THAT(failure_of([] { (void)comm::create_world({.backend = "none", .size = 2}); }).message,
             Names("machine.backend", "none", 2));
}

}  // namespace
}  // namespace dtrain::testing::comm_failure_test
