// Ranks that stop or end while they hand each other their memory.
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <catch2/catch.hpp>
#include <csignal>
#include <cstddef>
#include <cstring>
#include <thread>

#include "dtrain/base/error.h"
#include "dtrain/comm/shm/control_block.h"
#include "dtrain/comm/shm/introduction.h"
#include "dtrain/comm/shm/segment.h"

namespace dtrain::testing {
namespace {

using base::Deadline;
using base::Descriptor;
using std::chrono::milliseconds;

// Three ranks of which the test plays as many as it wants.
struct Meeting {
  std::vector<comm::ListenSocket> listeners;
  std::vector<std::string> names;
  comm::Segment segment{1 << 20, {}};

  Meeting() {
    for (int rank = 0; rank < 3; ++rank) {
      listeners.push_back(comm::open_listen_socket());
      names.push_back(listeners.back().name);
    }
  }
  void introduce(std::int64_t rank, milliseconds limit) const {
    (void)comm::exchange_segments(rank, listeners[static_cast<std::size_t>(rank)], names,
                                  segment.file(), base::Deadline(limit));
  }
};

struct Failure {
  base::ErrorKind kind = base::ErrorKind::internal;
  std::string message;
};

Failure failure_of(const Meeting& meeting, std::int64_t rank, milliseconds limit) {
  try {
    meeting.introduce(rank, limit);
  } catch (const base::Error& error) {
    return {error.kind(), error.what()};
  }
  return {};
}

bool call_at(const Descriptor& socket, const std::string& socket_name) {
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  std::memcpy(name.sun_path + 1, socket_name.data(), socket_name.size());
  const auto length =
      static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + socket_name.size());
  return ::connect(socket.get(), reinterpret_cast<const sockaddr*>(&name), length) == 0;
}

// Someone who has connected and says nothing.
Descriptor silent_visitor(const std::string& socket_name) {
  Descriptor socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  REQUIRE(call_at(socket, socket_name));
  return socket;
}

// Another user, who connects again and again.
class Flood {
 public:
  explicit Flood(const std::string& socket_name) {
    for (pid_t& child : children_) {
      child = ::fork();
      if (child != 0) continue;
      if (::setgid(kNobody) != 0 || ::setuid(kNobody) != 0) ::_exit(1);
      while (true) {
        const Descriptor socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0));
        (void)call_at(socket, socket_name);
      }
    }
  }
  ~Flood() {
    for (const pid_t child : children_) {
      ::kill(child, SIGKILL);
      ::waitpid(child, nullptr, 0);
    }
  }

 private:
  static constexpr uid_t kNobody = 65534;
  std::array<pid_t, 4> children_{};
};

void check_that_all_meet(const Meeting& meeting) {
  std::vector<std::thread> others;
  for (const std::int64_t rank : {1, 2}) {
    others.emplace_back(
        [&meeting, rank] { (void)failure_of(meeting, rank, milliseconds(20'000)); });
  }
  CHECK(failure_of(meeting, 0, milliseconds(20'000)).message.empty());
  for (std::thread& other : others) other.join();
}

TEST_CASE("Three ranks meet, beside a visitor who says nothing") {
  const Meeting meeting;
  const Descriptor visitor = silent_visitor(meeting.names[0]);
  check_that_all_meet(meeting);
}

TEST_CASE("Three ranks meet, beside another user who connects without end") {
  if (::geteuid() != 0) {
    WARN("skipped: only root can act as another user");
    return;
  }
  const Meeting meeting;
  const Flood flood(meeting.names[0]);
  std::this_thread::sleep_for(milliseconds(200));
  check_that_all_meet(meeting);
}

TEST_CASE("A visitor who says nothing cannot hold a rank beyond its deadline") {
  const Meeting meeting;
  const Descriptor visitor = silent_visitor(meeting.names[0]);
  const Failure failure = failure_of(meeting, 0, milliseconds(300));
  CHECK(failure.kind == base::ErrorKind::timeout);
  CHECK_THAT(failure.message, Catch::Contains("rank 1 did not share its memory within 0.3 s"));
}

TEST_CASE(
    "A rank that ends after it was met is named, before any deadline, instead of one that waits") {
  const Meeting meeting;
  // Rank 2 meets rank 0, waits in vain for rank 1 and gives up.
  std::thread ends([&meeting] { (void)failure_of(meeting, 2, milliseconds(300)); });
  const Failure failure = failure_of(meeting, 0, milliseconds(20'000));
  ends.join();
  CHECK(failure.kind == base::ErrorKind::comm);
  CHECK_THAT(failure.message, Catch::Contains("rank 2 ended while the ranks met"));
}

TEST_CASE("An offset of a control block that another rank tells is checked before it is used") {
  const std::int64_t room = 1 << 20;
  const std::int64_t last = room - comm::ControlBlock::bytes_for(2);
  CHECK(comm::ControlBlock::offset_of("4096", 2, room) == 4096);
  CHECK(comm::ControlBlock::offset_of(std::to_string(last), 2, room) == last);
  for (const std::string& text :
       {std::string("-64"), std::string("1"), std::string(""), std::string("64 "),
        std::string("0x40"), std::to_string(last + 64), std::string("9223372036854775744"),
        std::string("99999999999999999999999")}) {
    CAPTURE(text);
    CHECK_FALSE(comm::ControlBlock::offset_of(text, 2, room));
  }
  CHECK_FALSE(comm::ControlBlock::offset_of("0", 1 << 20, room));
}

}  // namespace
}  // namespace dtrain::testing
