#include <catch2/catch.hpp>

#include "launcher/restarts.h"
#include "support/messages.h"

namespace history_test {
namespace {

using Catch::Contains;
using launcher::AttemptEnd;
using launcher::History;
using Seconds = std::chrono::duration<double>;
using dtrain::testing::Names;

AttemptEnd failure() {
  AttemptEnd end;
  end.status = 7;
  end.has_failed = true;
  end.how = "rank 1 failed";
  end.is_reporting = true;
  end.step = 57;
  end.checkpoint.step = 50;
  end.duration = Seconds(12);
  return end;
}

TEST_CASE("A restart's line tells which, of how many, when, why and from where") {
  launcher::RestartPolicy policy({.max_restarts = 3});
  const auto decision = policy.after(failure());
  CHECK_THAT(launcher::restart_line(failure(), decision, policy, 3),
             Names("restart 1 of 3", "1.0 s", "rank 1 failed", "step 57", "step 50"));
}

TEST_CASE("The history has a line for each attempt, and what was measured") {
  AttemptEnd last;
  last.how = "ended well";
  last.step = 100;
  last.duration = Seconds(20);
  last.recovery = Seconds(3);
  const History history{{failure(), last}, Seconds(16), Seconds(40)};
  const auto lines = launcher::history_lines(history);
  REQUIRE(lines.size() == 4);
  CHECK(lines[0] == "2 attempts:");
  CHECK_THAT(lines[1], Names("attempt 0", "rank 1 failed", "12 s", "step 57", "step 50"));
  CHECK_THAT(lines[2], Names("attempt 1", "ended well", "20 s", "step 100", "3.0 s"));
  CHECK_THAT(lines[3], Names("3.0 s", "40.0%", "40 s"));
}

TEST_CASE("The newest checkpoint is that of the last attempt that had one") {
  AttemptEnd old = failure();
  old.checkpoint = {.step = 100, .resume_advice = "old", .requeue_file = "/old/REQUEUE"};
  AttemptEnd last = failure();
  last.checkpoint = {.step = 5, .resume_advice = {}, .requeue_file = "/last/REQUEUE"};
  const AttemptEnd without{};
  const auto found = launcher::newest_checkpoint({{old, last, without}, Seconds(1), Seconds(2)});
  CHECK(found.step == 5);
  CHECK(found.resume_advice.empty());
  CHECK(found.requeue_file == "/last/REQUEUE");
  CHECK(launcher::newest_checkpoint({{without}, Seconds(1), Seconds(2)}).step == -1);
}

TEST_CASE("A job of one attempt has no history") {
  CHECK(launcher::history_lines({{failure()}, Seconds(1), Seconds(2)}).empty());
}

TEST_CASE("Nothing is said of measures that were not taken") {
  AttemptEnd silent = failure();
  silent.step = silent.checkpoint.step = -1;
  const auto lines = launcher::history_lines({{silent, silent}, Seconds(0), Seconds(2)});
  REQUIRE(lines.size() == 3);
  CHECK_THAT(lines[2], Names("attempt 1", "rank 1 failed", "12 s") && !Contains("step"));
}

TEST_CASE("Of many attempts the last are shown") {
  const History history{std::vector<AttemptEnd>(61, failure()), Seconds(1), Seconds(2)};
  const auto lines = launcher::history_lines(history);
  CHECK(lines[0] == "61 attempts, the last 20:");
  CHECK_THAT(lines[1], Contains("attempt 41:"));
  CHECK(lines.size() == 22);
}

TEST_CASE("The last line of a job that failed says why it is not started again") {
  const History once{{failure()}, Seconds(0), Seconds(0)};
  CHECK_THAT(launcher::no_restart_line(once, "so"), Names("so") && !Contains("rank 1"));
  const History twice{{failure(), failure()}, Seconds(0), Seconds(0)};
  CHECK_THAT(launcher::no_restart_line(twice, "so"), Names("so", "rank 1 failed"));
}

}  // namespace
}  // namespace history_test
