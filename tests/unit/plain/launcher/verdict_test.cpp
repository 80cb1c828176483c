// What is said of the end of a job on several nodes.
#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "launcher/report.h"
#include "support/launcher_ranks.h"
#include "support/messages.h"

namespace launcher::verdict_test {
namespace {

using dtrain::testing::Names;
using dtrain::testing::rank_of;

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
  ranks[3].error.recall({"one", "two"});
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
  CHECK_THAT(last_line(verdict, ranks, two_nodes()), Names("rank 3 (its end"));
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
  verdict.decided = Decision{.status = 9, .failed = false, .line = ""};
  CHECK(status_of(verdict, ranks) == 9);
  CHECK(last_line(verdict, ranks, two_nodes()).empty());
  verdict.decided = Decision{.status = 7, .failed = true, .line = "failed: rank 0"};
  CHECK(verdict.failed());
  CHECK(last_line(verdict, ranks, two_nodes()) == "failed: rank 0");
}

}  // namespace
}  // namespace launcher::verdict_test
