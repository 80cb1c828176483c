#include "launcher/stragglers.h"

#include <catch2/catch.hpp>
#include <chrono>

#include "support/launcher_ranks.h"

namespace launcher::stragglers_test {
namespace {

using namespace std::chrono_literals;

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
      const std::string line = stragglers_.look(ranks_, now_);
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
}  // namespace launcher::stragglers_test
