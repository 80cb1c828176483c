#include <signal.h>

#include <catch2/catch.hpp>
#include <string>

#include "dtrain/base/error.h"
#include "launcher/restarts.h"
#include "support/messages.h"

namespace restart_policy_test {
namespace {

using Catch::Contains;
using dtrain::base::ErrorKind;
using dtrain::testing::Names;
using launcher::AttemptEnd;
using launcher::RestartPolicy;

AttemptEnd failure(int status = 7) {
  AttemptEnd end;
  end.status = status;
  end.has_failed = true;
  return end;
}

AttemptEnd failure_after(std::int64_t committed, const std::string& run = "run") {
  AttemptEnd end = failure();
  end.is_reporting = true;
  end.checkpoint.step = committed;
  end.committed_steps.set(run, committed);
  return end;
}

double wait_after(RestartPolicy& policy, const AttemptEnd& end) {
  const auto decision = policy.after(end);
  REQUIRE(decision.restarts);
  return decision.wait.count();
}

TEST_CASE("A job is started again as often as was asked for, and no more") {
  RestartPolicy policy({.max_restarts = 2});
  CHECK(policy.after(failure()).restarts);
  CHECK(policy.after(failure()).restarts);
  CHECK(policy.restarts() == 2);
  const auto decision = policy.after(failure());
  CHECK_FALSE(decision.restarts);
  CHECK_THAT(decision.why_not, Names("2 restarts"));
}

TEST_CASE("Without --max-restarts nothing is started again, and nothing is said of it") {
  const auto decision = RestartPolicy({}).after(failure());
  CHECK_FALSE(decision.restarts);
  CHECK(decision.why_not.empty());
}

TEST_CASE("A job that did not fail is over, whatever its status") {
  for (const int status : {0, static_cast<int>(ErrorKind::interrupted), 143}) {
    AttemptEnd end;
    end.status = status;
    const auto decision = RestartPolicy({.max_restarts = 3}).after(end);
    CHECK_FALSE(decision.restarts);
    CHECK(decision.why_not.empty());
  }
}

TEST_CASE("Errors that would come again are not tried again") {
  for (const auto kind : {ErrorKind::usage, ErrorKind::data, ErrorKind::spawn}) {
    const auto decision = RestartPolicy({.max_restarts = 3}).after(failure(static_cast<int>(kind)));
    CHECK_FALSE(decision.restarts);
    CHECK_THAT(decision.why_not, Contains("cannot fix"));
  }
  for (const int status : {1, 4, 5, 6, 7, 8, 11, 13, 70, 128 + SIGKILL}) {
    CHECK(RestartPolicy({.max_restarts = 3}).after(failure(status)).restarts);
  }
}

TEST_CASE("A job that was asked to stop is not started again, even if it failed") {
  AttemptEnd end = failure();
  end.request = SIGTERM;
  const auto decision = RestartPolicy({.max_restarts = 3}).after(end);
  CHECK_FALSE(decision.restarts);
  CHECK_THAT(decision.why_not, Names("SIGTERM"));
}

TEST_CASE("A signal during the wait takes the restart back") {
  RestartPolicy policy({.max_restarts = 3});
  CHECK(policy.after(failure()).restarts);
  const auto decision = policy.stopped_by(SIGINT);
  CHECK_FALSE(decision.restarts);
  CHECK_THAT(decision.why_not, Names("SIGINT"));
  CHECK(policy.restarts() == 0);
}

TEST_CASE("A job that a request keeps from its restart is interrupted if it has a checkpoint") {
  RestartPolicy policy({.max_restarts = 3});
  CHECK(policy.after(failure_after(40)).restarts);
  CHECK(policy.stopped_by(SIGUSR1).interrupted_by == SIGUSR1);
  CHECK(policy.stopped_by(SIGQUIT).interrupted_by == 0);
  AttemptEnd end = failure();
  end.request = SIGTERM;
  CHECK(policy.after(end).interrupted_by == SIGTERM);
  CHECK(RestartPolicy({.max_restarts = 3}).after(end).interrupted_by == 0);
  end.status = static_cast<int>(ErrorKind::usage);
  CHECK(policy.after(end).interrupted_by == 0);
}

TEST_CASE("A process that cannot be killed keeps the job from being started beside it") {
  AttemptEnd end = failure();
  end.is_left_behind = true;
  CHECK_FALSE(RestartPolicy({.max_restarts = 3}).after(end).restarts);
}

TEST_CASE("Three restarts in a row without a newer checkpoint are enough") {
  RestartPolicy policy({.max_restarts = 100});
  for (int restart = 0; restart < 3; ++restart) CHECK(policy.after(failure_after(40)).restarts);
  const auto decision = policy.after(failure_after(40));
  CHECK_FALSE(decision.restarts);
  CHECK_THAT(decision.why_not, Names("3 restarts", "checkpoint"));
}

TEST_CASE("Attempts that storage errors have ended do not count as without progress") {
  AttemptEnd away = failure_after(40);
  away.status = static_cast<int>(ErrorKind::checkpoint);
  RestartPolicy policy({.max_restarts = 12, .backoff = std::chrono::duration<double>(1)});
  for (const double wait : {1, 2, 4, 8, 16, 32, 60}) CHECK(wait_after(policy, away) == wait);
  for (int restart = 0; restart < 3; ++restart) CHECK(policy.after(failure_after(40)).restarts);
  CHECK_FALSE(policy.after(failure_after(40)).restarts);
  for (int restart = 0; restart < 2; ++restart) CHECK(policy.after(away).restarts);
  CHECK_THAT(policy.after(away).why_not, Names("12 restarts"));
}

TEST_CASE("A newer checkpoint, not an older one, gives new patience") {
  RestartPolicy policy({.max_restarts = 100});
  CHECK(policy.after(failure_after(40)).restarts);
  CHECK(policy.after(failure_after(30)).restarts);
  CHECK(policy.after(failure_after(-1)).restarts);
  CHECK(policy.after(failure_after(41)).restarts);
  CHECK(policy.committed() == 41);
  for (int restart = 0; restart < 2; ++restart) CHECK(policy.after(failure_after(41)).restarts);
  CHECK_FALSE(policy.after(failure_after(41)).restarts);
}

TEST_CASE("A newer checkpoint of any run is progress") {
  RestartPolicy policy({.max_restarts = 100});
  CHECK(policy.after(failure_after(100, "first")).restarts);
  for (const std::int64_t step : {10, 20, 30, 40, 50}) {
    CHECK(policy.after(failure_after(step, "second")).restarts);
  }
  CHECK(policy.committed() == 50);
  CHECK(policy.committed_steps().text() == "first=100 second=50");
  CHECK(policy.after(failure_after(50, "second")).restarts);
  CHECK(policy.after(failure_after(40, "first")).restarts);
  CHECK(policy.committed_steps().text() == "first=40 second=50");
  CHECK_FALSE(policy.after(failure_after(45, "first")).restarts);
}

TEST_CASE("A program that reports nothing has its whole budget") {
  RestartPolicy policy({.max_restarts = 20});
  for (int restart = 0; restart < 20; ++restart) CHECK(policy.after(failure()).restarts);
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

}  // namespace
}  // namespace restart_policy_test
