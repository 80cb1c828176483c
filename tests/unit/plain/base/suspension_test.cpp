#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <thread>

#include "dtrain/base/clock.h"

namespace suspension_test {
namespace {

using namespace std::chrono_literals;
using dtrain::base::Deadline;
using dtrain::base::suspended_time;

/// The child's part: exits with 0 if it measures a stop of two seconds correctly.
int look_after_stop(int ready, int go) {
  dtrain::base::count_suspensions();
  const Deadline deadline(1500ms);
  char byte = 0;
  if (::write(ready, &byte, 1) != 1 || ::read(go, &byte, 1) != 1) return 1;
  if (deadline.passed()) return 2;
  if (suspended_time() < 1900ms || suspended_time() > 5s) return 3;
  std::this_thread::sleep_for(1100ms);  // a tick counts it
  const auto before = suspended_time();
  const pid_t child = ::fork();
  if (child == 0) {
    std::this_thread::sleep_for(1100ms);
    ::_exit(suspended_time() == before ? 0 : 1);  // nobody ticks there
  }
  int status = -1;
  ::waitpid(child, &status, 0);
  return status == 0 ? 0 : 4;
}

TEST_CASE("Deadlines exclude the time during which the process was stopped") {
  int ready[2];
  int go[2];
  REQUIRE(::pipe(ready) == 0);
  REQUIRE(::pipe(go) == 0);
  const pid_t pid = ::fork();
  REQUIRE(pid >= 0);
  if (pid == 0) ::_exit(look_after_stop(ready[1], go[0]));
  char byte = 0;
  REQUIRE(::read(ready[0], &byte, 1) == 1);
  ::kill(pid, SIGSTOP);
  std::this_thread::sleep_for(2s);
  REQUIRE(::write(go[1], &byte, 1) == 1);
  ::kill(pid, SIGCONT);
  int status = -1;
  ::waitpid(pid, &status, 0);
  CHECK(WEXITSTATUS(status) == 0);
  for (const int fd : {ready[0], ready[1], go[0], go[1]}) ::close(fd);
}

TEST_CASE("Nothing is counted without count_suspensions") { CHECK(suspended_time() == 0s); }

}  // namespace
}  // namespace suspension_test
