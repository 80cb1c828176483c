#include "dtrain/base/launcher_link.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <catch2/catch.hpp>
#include <cerrno>
#include <memory>
#include <string>

#include "dtrain/base/error.h"
#include "support/messages.h"

namespace launcher_link_test {
namespace {

using dtrain::base::LauncherLink;
using dtrain::testing::Names;

struct Line {
  int launcher = -1;
  int rank = -1;
};

Line make_line() {
  int ends[2];
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
  return {ends[0], ends[1]};
}

struct Child {
  pid_t pid = -1;
  int launcher = -1;  // its control line
  int standard_error = -1;
};

/// A process that holds a link and would otherwise end with status 0 after ten seconds.
Child start_child() {
  const Line line = make_line();
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  const pid_t pid = ::fork();
  REQUIRE(pid >= 0);
  if (pid == 0) {
    ::close(line.launcher);
    ::dup2(ends[1], STDERR_FILENO);
    ::close(ends[1]);
    const LauncherLink link(line.rank);
    ::sleep(10);
    ::_exit(0);
  }
  ::close(line.rank);
  ::close(ends[1]);
  return {pid, line.launcher, ends[0]};
}

std::string read_all(int fd) {
  std::string text;
  std::array<char, 256> buffer;
  for (;;) {
    const ssize_t length = ::read(fd, buffer.data(), buffer.size());
    if (length <= 0) break;
    text.append(buffer.data(), static_cast<std::size_t>(length));
  }
  ::close(fd);
  return text;
}

int exit_status_of(pid_t pid) {
  int status = 0;
  REQUIRE(::waitpid(pid, &status, 0) == pid);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

void send_text(int fd, const std::string& text) {
  REQUIRE(::send(fd, text.data(), text.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(text.size()));
}

TEST_CASE("A process that receives abort exits at once with status 4") {
  const Child child = start_child();
  send_text(child.launcher, "some later word\nabort 3 killed");
  ::usleep(20'000);  // in two pieces
  send_text(child.launcher, " by 9\n");
  CHECK(exit_status_of(child.pid) == 4);
  CHECK_THAT(read_all(child.standard_error), Names("dtrain", "rank 3 killed by 9"));
  ::close(child.launcher);
}

TEST_CASE("A process that receives leave exits at once with status 4 and prints nothing") {
  const Child child = start_child();
  send_text(child.launcher, "leave\n");
  CHECK(exit_status_of(child.pid) == 4);
  CHECK(read_all(child.standard_error).empty());
  ::close(child.launcher);
}

TEST_CASE("The width of the launcher's terminal arrives") {
  const Line line = make_line();
  {
    const LauncherLink link(line.rank);
    CHECK(link.columns() == 0);
    send_text(line.launcher, "columns 61\n");
    while (link.columns() == 0) ::usleep(1000);
    CHECK(link.columns() == 61);
  }
  ::close(line.rank);
  ::close(line.launcher);
}

TEST_CASE("A recovery time that dtrun reports is returned once") {
  const Line line = make_line();
  {
    LauncherLink link(line.rank);
    CHECK(link.take_recovery() == 0);
    send_text(line.launcher, "recovered 4.125\n");
    double seconds = 0;
    while (seconds == 0) {
      seconds = link.take_recovery();
      ::usleep(1000);
    }
    CHECK(seconds == 4.125);
    CHECK(link.take_recovery() == 0);
  }
  ::close(line.rank);
  ::close(line.launcher);
}

TEST_CASE("A process whose launcher is gone exits with status 4") {
  const Child child = start_child();
  ::close(child.launcher);
  CHECK(exit_status_of(child.pid) == 4);
  CHECK_THAT(read_all(child.standard_error), Names("dtrain", "dtrun"));
}

TEST_CASE("A rank that fails by itself ignores dtrun's abort") {
  const Line line = make_line();
  {
    LauncherLink link(line.rank);
    link.ignore_abort();
    const std::string_view orders = "abort 1 failed\nleave\ncolumns 80\n";
    REQUIRE(::write(line.launcher, orders.data(), orders.size()) == std::ssize(orders));
    while (link.columns() == 0) ::usleep(1000);
  }
  ::close(line.rank);
  ::close(line.launcher);
}

TEST_CASE("A failing rank sends one unrequested report") {
  const Line line = make_line();
  {
    LauncherLink link(line.rank);
    link.activity().set_call_report([] { return std::string("call 7\n"); });
    link.send_last_records();
    link.activity().set_call_report({});
    send_text(line.launcher, "records\ncolumns 80\n");
    while (link.columns() == 0) ::usleep(1000);
  }
  ::close(line.rank);
  const std::string received = read_all(line.launcher);
  const std::string end = "\ncall 7\nrecords-last\n";
  CHECK(received.ends_with(end));
  CHECK(received.find("where") == received.rfind("where"));
}

TEST_CASE("Progress arrives as one line per step") {
  const Line line = make_line();
  {
    LauncherLink link(line.rank);
    link.progress(7, 0.5);
    link.progress(123456789012, 0.5);
  }
  ::close(line.rank);
  CHECK(read_all(line.launcher) == "progress 7 500000\nprogress 123456789012 500000\n");
}

TEST_CASE("Progress never blocks on a launcher that does not read") {
  const Line line = make_line();
  {
    LauncherLink link(line.rank);
    for (int step = 0; step < 100'000; ++step) link.progress(step, 0.5);  // far more than fits
  }
  ::close(line.rank);
  const std::string received = read_all(line.launcher);
  CHECK(received.starts_with("progress 0 500000\nprogress 1 500000\n"));
  CHECK(received.size() < 100'000 * std::string("progress 0\n").size());
}

TEST_CASE("A link without a launcher is a no-op, and a closed descriptor is rejected") {
  LauncherLink none(-1);
  none.progress(1, 0.5);
  const Line line = make_line();
  ::close(line.launcher);
  ::close(line.rank);
  try {
    const LauncherLink link(line.rank);
    FAIL("a closed descriptor was accepted");
  } catch (const dtrain::base::Error& error) {
    CHECK(error.exit_status() == 2);
    CHECK(std::string(error.what()).find("DTRUN_CONTROL_FD") != std::string::npos);
  }
}

TEST_CASE("The listening thread leaves signals to the main thread") {
  const pid_t pid = ::fork();
  REQUIRE(pid >= 0);
  if (pid == 0) {
    sigset_t user;
    ::sigemptyset(&user);
    ::sigaddset(&user, SIGUSR1);
    const Line line = make_line();
    const LauncherLink link(line.rank);
    ::pthread_sigmask(SIG_BLOCK, &user, nullptr);
    ::kill(::getpid(), SIGUSR1);  // would end the process in a thread that does not block it
    ::usleep(20'000);
    sigset_t waiting;
    ::sigpending(&waiting);
    ::_exit(::sigismember(&waiting, SIGUSR1) == 1 ? 0 : 1);
  }
  CHECK(exit_status_of(pid) == 0);
}

}  // namespace
}  // namespace launcher_link_test
