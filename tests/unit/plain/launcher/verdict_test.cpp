#include "launcher/judge/verdict.h"

#include <catch2/catch.hpp>
#include <chrono>
#include <string>
#include <vector>

#include "launcher/judge/stragglers.h"
#include "support/messages.h"
#include "support/ranks/launcher_ranks.h"

namespace launcher::verdict_test {
namespace {

using dtrain::testing::Names;
using dtrain::testing::rank_of;
using namespace std::chrono_literals;

// What is said of the end of a job on several nodes.
Placement two_nodes() {
  Placement placement;
  placement.nodes = {{"hosta", 0, 2}, {"hostb", 2, 2}};
  return placement;
}

std::vector<Rank> ranks_with(int failed, RankEnd end) {
  std::vector<Rank> ranks;
  for (int index = 0; index < 4; ++index) {
    ranks.push_back(rank_of(index, index / 2));
    if (index == failed) ranks.back().end = end;
  }
  return ranks;
}

TEST_CASE("the line names rank, host and node") {
  auto ranks = ranks_with(3, RankEnd{.time_ns = 1'000'000, .by_signal = false, .code = 7});
  ranks[3].step = 5;
  ranks[3].error.set_last_lines({"one", "two"});
  Verdict verdict;
  verdict.culprit = 3;
  verdict.failed_ns = 1'000'000;
  CHECK_THAT(
      last_line(verdict, ranks, two_nodes()),
      Names("failed", "rank 3", "pid 103", "hostb", "node 1", "status 7", "1 ms", "step 5", "two"));
  CHECK(status_of(verdict, ranks) == 7);
  CHECK_THAT(abort_order(verdict, ranks, two_nodes()).reason, Names("status 7"));
}

TEST_CASE("a rank that its node has not reported yet has no process id in the line") {
  auto ranks = ranks_with(-1, {});
  ranks[3].pid = -1;
  ranks[3].hang = "is silent";
  Verdict verdict;
  verdict.culprit = 3;
  verdict.failed_ns = 2'000'000'000;
  CHECK_THAT(last_line(verdict, ranks, two_nodes()),
             Names("failed", "rank 3", "hostb", "node 1", "is silent", "2.0 s") &&
                 !Catch::Contains("pid"));
  verdict.culprit.reset();
  verdict.stop_signal = 15;
  CHECK_THAT(last_line(verdict, ranks, two_nodes()), Names("rank 2 (pid 102", "rank 3 (its node"));
  ranks[3].lost = true;
  CHECK_THAT(last_line(verdict, ranks, two_nodes()), Names("rank 3 (exit"));
}

TEST_CASE("a lost node has its own status and line") {
  const auto ranks = ranks_with(-1, {});
  Verdict verdict;
  verdict.lost = NodeFailure{.node = 1, .status = 5, .reason = "was silent"};
  CHECK(status_of(verdict, ranks) == 5);
  CHECK_FALSE(verdict.clean());
  CHECK_THAT(last_line(verdict, ranks, two_nodes()),
             Names("failed", "node 1", "hostb", "ranks 2 to 3", "was silent"));
  const AbortOrder order = abort_order(verdict, ranks, two_nodes());
  CHECK(order.rank == 2);
  CHECK_THAT(order.reason, Names("node 1", "hostb", "was silent"));
}

TEST_CASE("what node 0 decided counts for the others") {
  const auto ranks = ranks_with(-1, {});
  Verdict verdict;
  verdict.stop_signal = 15;
  verdict.result = JobResult{.status = 9, .failed = false, .line = ""};
  CHECK(status_of(verdict, ranks) == 9);
  CHECK(last_line(verdict, ranks, two_nodes()).empty());
  verdict.result = JobResult{.status = 7, .failed = true, .line = "failed: rank 0"};
  CHECK(verdict.failed());
  CHECK(last_line(verdict, ranks, two_nodes()) == "failed: rank 0");
}

/// Ranks that make a step of 0.1 s each, and look after each.
class Job {
 public:
  explicit Job(int num_ranks) {
    for (int index = 0; index < num_ranks; ++index) {
      ranks_.push_back(dtrain::testing::rank_of(index));
    }
  }

  /// waits_us: of each rank, a step. Returns what was said first.
  std::string steps(int count, const std::vector<int>& waits_us) {
    std::string said;
    for (int step = 0; step < count; ++step) {
      now_ += 100ms;
      for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
        ranks_[rank].step = step_;
        ranks_[rank].waited_us += waits_us[rank];
      }
      ++step_;
      const std::string line = stragglers_.sample(ranks_, now_);
      if (said.empty()) said = line;
    }
    return said;
  }

  void restart() {
    stragglers_.begin_attempt();
    step_ = 1;
  }

 private:
  std::vector<Rank> ranks_;
  Stragglers stragglers_;
  Stragglers::Time now_;
  std::int64_t step_ = 1;
};

TEST_CASE("The rank that the others wait for is reported once, after a minute") {
  Job job(4);
  CHECK(job.steps(590, {40'000, 42'000, 2'300, 44'000}).empty());  // too early
  const std::string line = job.steps(30, {40'000, 42'000, 2'300, 44'000});
  CHECK_THAT(line,
             Catch::Contains("rank 2") && Catch::Contains("40 ms") && Catch::Contains("0.1 s"));
  CHECK(job.steps(1300, {40'000, 42'000, 2'300, 44'000}).empty());
}

TEST_CASE("Another attempt starts the minute anew") {
  Job job(4);
  CHECK(job.steps(590, {40'000, 42'000, 2'300, 44'000}).empty());
  job.restart();
  CHECK(job.steps(590, {40'000, 42'000, 2'300, 44'000}).empty());
  CHECK_FALSE(job.steps(30, {40'000, 42'000, 2'300, 44'000}).empty());
}

TEST_CASE("Ranks that wait alike are not late") {
  CHECK(Job(4).steps(1300, {40'000, 42'000, 38'000, 44'000}).empty());
  CHECK(Job(2).steps(1300, {9'000, 1'000}).empty());  // less than a tenth of a step
  CHECK(Job(1).steps(1300, {0}).empty());
}

TEST_CASE("A rank that is late now and then is not told") {
  Job job(2);
  std::string said;
  for (int round = 0; round < 20; ++round) {
    said += job.steps(20, {50'000, 0});
    said += job.steps(60, {20'000, 20'000});
  }
  CHECK(said.empty());
}

}  // namespace
}  // namespace launcher::verdict_test
