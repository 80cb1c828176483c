#include <signal.h>

#include <catch2/catch.hpp>
#include <string>

#include "dtrain/base/error.h"
#include "launcher/clocks.h"
#include "launcher/judge/restarts.h"
#include "support/messages.h"

namespace restart_policy_test {
namespace {

using Catch::Contains;
using dtrain::base::ErrorKind;
using dtrain::testing::Names;
using launcher::AttemptResult;
using launcher::History;
using launcher::RestartPolicy;
using Seconds = std::chrono::duration<double>;
using launcher::StepClock;
using std::chrono::milliseconds;

AttemptResult failure(int status = 7) {
  AttemptResult end;
  end.status = status;
  end.has_failed = true;
  return end;
}

AttemptResult failure_after(std::int64_t committed, const std::string& run = "run") {
  AttemptResult end = failure();
  end.is_reporting = true;
  end.checkpoint.step = committed;
  end.committed_steps.set(run, committed);
  return end;
}

double wait_after(RestartPolicy& policy, const AttemptResult& end) {
  const auto decision = policy.decide(end);
  REQUIRE(decision.restarts);
  return decision.wait.count();
}

TEST_CASE("A job is started again as often as was asked for, and no more") {
  RestartPolicy policy({.max_restarts = 2});
  CHECK(policy.decide(failure()).restarts);
  CHECK(policy.decide(failure()).restarts);
  CHECK(policy.restarts() == 2);
  const auto decision = policy.decide(failure());
  CHECK_FALSE(decision.restarts);
  CHECK_THAT(decision.why_not, Names("2 restarts"));
}

TEST_CASE("Without --max-restarts nothing is started again, and nothing is said of it") {
  const auto decision = RestartPolicy({}).decide(failure());
  CHECK_FALSE(decision.restarts);
  CHECK(decision.why_not.empty());
}

TEST_CASE("A job that did not fail is over, whatever its status") {
  for (const int status : {0, static_cast<int>(ErrorKind::interrupted), 143}) {
    AttemptResult end;
    end.status = status;
    const auto decision = RestartPolicy({.max_restarts = 3}).decide(end);
    CHECK_FALSE(decision.restarts);
    CHECK(decision.why_not.empty());
  }
}

TEST_CASE("Errors that would come again are not tried again") {
  for (const auto kind : {ErrorKind::usage, ErrorKind::data, ErrorKind::spawn}) {
    const auto decision =
        RestartPolicy({.max_restarts = 3}).decide(failure(static_cast<int>(kind)));
    CHECK_FALSE(decision.restarts);
    CHECK_THAT(decision.why_not, Contains("cannot fix"));
  }
  for (const int status : {1, 4, 5, 6, 7, 8, 11, 13, 70, 128 + SIGKILL}) {
    CHECK(RestartPolicy({.max_restarts = 3}).decide(failure(status)).restarts);
  }
}

TEST_CASE("A job that was asked to stop is not started again, even if it failed") {
  AttemptResult end = failure();
  end.request = SIGTERM;
  const auto decision = RestartPolicy({.max_restarts = 3}).decide(end);
  CHECK_FALSE(decision.restarts);
  CHECK_THAT(decision.why_not, Names("SIGTERM"));
}

TEST_CASE("A signal during the wait takes the restart back") {
  RestartPolicy policy({.max_restarts = 3});
  CHECK(policy.decide(failure()).restarts);
  const auto decision = policy.stopped_by(SIGINT);
  CHECK_FALSE(decision.restarts);
  CHECK_THAT(decision.why_not, Names("SIGINT"));
  CHECK(policy.restarts() == 0);
}

TEST_CASE("A job that a request keeps from its restart is interrupted if it has a checkpoint") {
  RestartPolicy policy({.max_restarts = 3});
  CHECK(policy.decide(failure_after(40)).restarts);
  CHECK(policy.stopped_by(SIGUSR1).interrupted_by == SIGUSR1);
  CHECK(policy.stopped_by(SIGQUIT).interrupted_by == 0);
  AttemptResult end = failure();
  end.request = SIGTERM;
  CHECK(policy.decide(end).interrupted_by == SIGTERM);
  CHECK(RestartPolicy({.max_restarts = 3}).decide(end).interrupted_by == 0);
  end.status = static_cast<int>(ErrorKind::usage);
  CHECK(policy.decide(end).interrupted_by == 0);
}

TEST_CASE("A process that cannot be killed keeps the job from being started beside it") {
  AttemptResult end = failure();
  end.is_left_behind = true;
  CHECK_FALSE(RestartPolicy({.max_restarts = 3}).decide(end).restarts);
}

TEST_CASE("Three restarts in a row without a newer checkpoint are enough") {
  RestartPolicy policy({.max_restarts = 100});
  for (int restart = 0; restart < 3; ++restart) CHECK(policy.decide(failure_after(40)).restarts);
  const auto decision = policy.decide(failure_after(40));
  CHECK_FALSE(decision.restarts);
  CHECK_THAT(decision.why_not, Names("3 restarts", "checkpoint"));
}

TEST_CASE("Attempts that storage errors have ended do not count as without progress") {
  AttemptResult away = failure_after(40);
  away.status = static_cast<int>(ErrorKind::checkpoint);
  RestartPolicy policy({.max_restarts = 12, .backoff = std::chrono::duration<double>(1)});
  for (const double wait : {1, 2, 4, 8, 16, 32, 60}) CHECK(wait_after(policy, away) == wait);
  for (int restart = 0; restart < 3; ++restart) CHECK(policy.decide(failure_after(40)).restarts);
  CHECK_FALSE(policy.decide(failure_after(40)).restarts);
  for (int restart = 0; restart < 2; ++restart) CHECK(policy.decide(away).restarts);
  CHECK_THAT(policy.decide(away).why_not, Names("12 restarts"));
}

TEST_CASE("A newer checkpoint, not an older one, gives new patience") {
  RestartPolicy policy({.max_restarts = 100});
  CHECK(policy.decide(failure_after(40)).restarts);
  CHECK(policy.decide(failure_after(30)).restarts);
  CHECK(policy.decide(failure_after(-1)).restarts);
  CHECK(policy.decide(failure_after(41)).restarts);
  CHECK(policy.committed() == 41);
  for (int restart = 0; restart < 2; ++restart) CHECK(policy.decide(failure_after(41)).restarts);
  CHECK_FALSE(policy.decide(failure_after(41)).restarts);
}

TEST_CASE("A newer checkpoint of any run is progress") {
  RestartPolicy policy({.max_restarts = 100});
  CHECK(policy.decide(failure_after(100, "first")).restarts);
  for (const std::int64_t step : {10, 20, 30, 40, 50}) {
    CHECK(policy.decide(failure_after(step, "second")).restarts);
  }
  CHECK(policy.committed() == 50);
  CHECK(policy.committed_steps().text() == "first=100 second=50");
  CHECK(policy.decide(failure_after(50, "second")).restarts);
  CHECK(policy.decide(failure_after(40, "first")).restarts);
  CHECK(policy.committed_steps().text() == "first=40 second=50");
  CHECK_FALSE(policy.decide(failure_after(45, "first")).restarts);
}

TEST_CASE("A program that reports nothing has its whole budget") {
  RestartPolicy policy({.max_restarts = 20});
  for (int restart = 0; restart < 20; ++restart) CHECK(policy.decide(failure()).restarts);
}

TEST_CASE("The wait doubles without progress, to a minute, and begins anew with it") {
  RestartPolicy policy({.max_restarts = 100, .backoff = std::chrono::duration<double>(1)});
  for (const double wait : {1, 2, 4, 8, 16, 32, 60, 60}) {
    CHECK(wait_after(policy, failure()) == wait);
  }
  CHECK(wait_after(policy, failure_after(5)) == 1);
  CHECK(wait_after(policy, failure_after(5)) == 2);
}

TEST_CASE("A longer back-off than a minute stays as it was given") {
  RestartPolicy policy({.max_restarts = 3, .backoff = std::chrono::duration<double>(90)});
  CHECK(wait_after(policy, failure()) == 90);
  CHECK(wait_after(policy, failure()) == 90);
}

AttemptResult failed_attempt() {
  AttemptResult end;
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
  const auto decision = policy.decide(failed_attempt());
  CHECK_THAT(launcher::restart_line(failed_attempt(), decision, policy, 3),
             Names("restart 1 of 3", "1.0 s", "rank 1 failed", "step 57", "step 50"));
}

TEST_CASE("The history has a line for each attempt, and what was measured") {
  AttemptResult last;
  last.how = "ended well";
  last.step = 100;
  last.duration = Seconds(20);
  last.recovery = Seconds(3);
  const History history{{failed_attempt(), last}, Seconds(16), Seconds(40)};
  const auto lines = launcher::history_lines(history);
  REQUIRE(lines.size() == 4);
  CHECK(lines[0] == "2 attempts:");
  CHECK_THAT(lines[1], Names("attempt 0", "rank 1 failed", "12 s", "step 57", "step 50"));
  CHECK_THAT(lines[2], Names("attempt 1", "ended well", "20 s", "step 100", "3.0 s"));
  CHECK_THAT(lines[3], Names("3.0 s", "40.0%", "40 s"));
}

TEST_CASE("The newest checkpoint is that of the last attempt that had one") {
  AttemptResult old = failed_attempt();
  old.checkpoint = {.step = 100, .resume_advice = "old", .requeue_file = "/old/REQUEUE"};
  AttemptResult last = failed_attempt();
  last.checkpoint = {.step = 5, .resume_advice = {}, .requeue_file = "/last/REQUEUE"};
  const AttemptResult without{};
  const auto found = launcher::newest_checkpoint({{old, last, without}, Seconds(1), Seconds(2)});
  CHECK(found.step == 5);
  CHECK(found.resume_advice.empty());
  CHECK(found.requeue_file == "/last/REQUEUE");
  CHECK(launcher::newest_checkpoint({{without}, Seconds(1), Seconds(2)}).step == -1);
}

TEST_CASE("A job of one attempt has no history") {
  CHECK(launcher::history_lines({{failed_attempt()}, Seconds(1), Seconds(2)}).empty());
}

TEST_CASE("Nothing is said of measures that were not taken") {
  AttemptResult silent = failed_attempt();
  silent.step = silent.checkpoint.step = -1;
  const auto lines = launcher::history_lines({{silent, silent}, Seconds(0), Seconds(2)});
  REQUIRE(lines.size() == 3);
  CHECK_THAT(lines[2], Names("attempt 1", "rank 1 failed", "12 s") && !Contains("step"));
}

TEST_CASE("Of many attempts the last are shown") {
  const History history{std::vector<AttemptResult>(61, failed_attempt()), Seconds(1), Seconds(2)};
  const auto lines = launcher::history_lines(history);
  CHECK(lines[0] == "61 attempts, the last 20:");
  CHECK_THAT(lines[1], Contains("attempt 41:"));
  CHECK(lines.size() == 22);
}

TEST_CASE("The last line of a job that failed says why it is not started again") {
  const History once{{failed_attempt()}, Seconds(0), Seconds(0)};
  CHECK_THAT(launcher::no_restart_line(once, "so"), Names("so") && !Contains("rank 1"));
  const History twice{{failed_attempt(), failed_attempt()}, Seconds(0), Seconds(0)};
  CHECK_THAT(launcher::no_restart_line(twice, "so"), Names("so", "rank 1 failed"));
}

StepClock::Time at(int ms) { return StepClock::Time(milliseconds(ms)); }

TEST_CASE("The time of steps counts from the second report of an attempt on") {
  StepClock clock;
  clock.begin_attempt();
  clock.report(1, at(5000));
  CHECK(clock.useful().count() == 0);
  clock.report(2, at(5100));
  clock.report(2, at(5150));  // again: nothing new
  clock.report(4, at(5300));
  CHECK(clock.useful().count() == Approx(300e-3));
}

TEST_CASE("A step that is repeated after a failure counts once") {
  StepClock clock;
  clock.begin_attempt();
  for (int step = 1; step <= 5; ++step) clock.report(step, at(100 * step));
  clock.fail(at(550));
  CHECK(clock.useful().count() == Approx(400e-3));
  clock.begin_attempt();  // resumes after step 3
  clock.report(4, at(2000));
  clock.report(5, at(2100));
  CHECK(clock.useful().count() == Approx(400e-3));
  clock.report(6, at(2200));
  CHECK(clock.useful().count() == Approx(500e-3));
}

TEST_CASE("A job has recovered with the first step that no attempt had done") {
  StepClock clock;
  clock.begin_attempt();
  clock.report(5, at(100));
  clock.fail(at(500));
  clock.begin_attempt();
  CHECK_FALSE(clock.report(5, at(1000)));
  CHECK_FALSE(clock.recovery());
  CHECK(clock.report(6, at(1250)));
  CHECK(clock.recovery()->count() == Approx(0.75));
  CHECK_FALSE(clock.report(7, at(1300)));
  CHECK(clock.recovery()->count() == Approx(0.75));
  clock.begin_attempt();
  CHECK_FALSE(clock.recovery());
}

TEST_CASE("A second failure before the recovery does not shorten it") {
  StepClock clock;
  clock.begin_attempt();
  clock.report(5, at(100));
  clock.fail(at(500));
  clock.begin_attempt();
  clock.report(4, at(1000));
  clock.fail(at(1100));
  clock.begin_attempt();
  CHECK(clock.report(6, at(2500)));
  CHECK(clock.recovery()->count() == Approx(2));
}

}  // namespace
}  // namespace restart_policy_test
