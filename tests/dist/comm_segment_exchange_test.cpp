// The exchange of memory segments, with ranks that hang or exit during it.
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <catch2/catch.hpp>
#include <csignal>
#include <cstddef>
#include <cstring>
#include <functional>
#include <thread>

#include "dtrain/base/error.h"
#include "dtrain/comm/internal/host/control_block.h"
#include "dtrain/comm/internal/host/host_groups.h"
#include "dtrain/comm/internal/host/segment.h"
#include "dtrain/comm/internal/host/segment_exchange.h"
#include "support/messages.h"

namespace dtrain::testing::comm_segment_exchange_test {
namespace {

using base::Deadline;
using base::Descriptor;
using std::chrono::milliseconds;

// Three ranks, some of which the test plays.
struct ExchangeFixture {
  comm::ListenSocket listener = comm::open_listen_socket();
  std::string name = listener.name;
  comm::Segment segment{1 << 20, {}};

  /// The ranks whose memory that rank receives.
  std::vector<std::int64_t> exchange(std::int64_t rank, milliseconds limit) {
    comm::HostMember self{.rank = rank, .ranks = {0, 1, 2}, .socket_name = name, .listener = {}};
    if (rank == 0) self.listener = std::move(listener);
    std::vector<std::int64_t> found;
    comm::exchange_segments(std::move(self), segment.file(), base::Deadline(limit),
                            [&](std::int64_t each, base::Descriptor memory) {
                              CHECK(memory.get() >= 0);
                              found.push_back(each);
                            });
    return found;
  }
};

struct Failure {
  base::ErrorKind kind = base::ErrorKind::internal;
  std::string message;
};

Failure failure_of(ExchangeFixture& fixture, std::int64_t rank, milliseconds limit) {
  try {
    const auto found = fixture.exchange(rank, limit);
    if (found != std::vector<std::int64_t>{0, 1, 2}) return {.message = "not all ranks"};
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

// A connection that stays silent.
Descriptor silent_connection(const std::string& socket_name) {
  Descriptor socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  REQUIRE(call_at(socket, socket_name));
  return socket;
}

// Another user that connects repeatedly.
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

void check_that_all_exchange(ExchangeFixture& fixture) {
  std::vector<std::thread> others;
  std::array<Failure, 3> failures;
  for (const std::int64_t rank : {1, 2}) {
    others.emplace_back([&, rank] {
      failures[static_cast<std::size_t>(rank)] = failure_of(fixture, rank, milliseconds(20'000));
    });
  }
  failures[0] = failure_of(fixture, 0, milliseconds(20'000));
  for (std::thread& other : others) other.join();
  for (const Failure& failure : failures) CHECK(failure.message == "");
}

TEST_CASE("Three ranks exchange segments despite a silent connection") {
  ExchangeFixture fixture;
  const Descriptor connection = silent_connection(fixture.name);
  check_that_all_exchange(fixture);
}

TEST_CASE("Three ranks exchange segments while another user keeps connecting") {
  if (::geteuid() != 0) {
    WARN("skipped: needs root: to be another user");
    return;
  }
  ExchangeFixture fixture;
  const Flood flood(fixture.name);
  std::this_thread::sleep_for(milliseconds(200));
  check_that_all_exchange(fixture);
}

TEST_CASE("A silent connection cannot delay a rank beyond its deadline") {
  ExchangeFixture fixture;
  const Descriptor connection = silent_connection(fixture.name);
  const Failure failure = failure_of(fixture, 0, milliseconds(300));
  CHECK(failure.kind == base::ErrorKind::timeout);
  CHECK_THAT(failure.message, Names("rank 1", "0.3 s", "--comm-timeout"));
}

TEST_CASE(
    "A rank that exits after it sent its segment is named, before any deadline, instead of a "
    "waiting one") {
  ExchangeFixture fixture;
  // Rank 2 sends its segment to rank 0, times out waiting for rank 1, and exits.
  std::thread ends([&fixture] { (void)failure_of(fixture, 2, milliseconds(300)); });
  const Failure failure = failure_of(fixture, 0, milliseconds(20'000));
  ends.join();
  CHECK(failure.kind == base::ErrorKind::comm);
  CHECK_THAT(failure.message, Names("rank 2", "exited"));
}

TEST_CASE("Hundreds of ranks exchange more files than one packet can hold") {
  constexpr std::int64_t kRanks = 300;
  const comm::ListenSocket listener = comm::open_listen_socket();
  const Descriptor memory(::memfd_create("test", MFD_CLOEXEC));
  std::atomic<std::int64_t> handed = 0;
  const auto meet = [&](std::int64_t rank) {
    comm::HostMember self{.rank = rank, .ranks = {}, .socket_name = listener.name, .listener = {}};
    for (std::int64_t each = 0; each < kRanks; ++each) self.ranks.push_back(each);
    if (rank == 0) self.listener = {Descriptor(::dup(listener.socket.get())), listener.name};
    std::int64_t next = 0;
    comm::exchange_segments(std::move(self), memory, base::Deadline(milliseconds(20'000)),
                            [&](std::int64_t each, const Descriptor&) {
                              if (each == next++) ++handed;
                            });
  };
  {
    std::vector<std::jthread> ranks;
    for (std::int64_t rank = 0; rank < kRanks; ++rank) ranks.emplace_back(meet, rank);
  }
  CHECK(handed == kRanks * kRanks);
}

// Runs `body` in a child process and returns its wait status: 0 if it returned true.
int outcome_of(const std::function<bool()>& body) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(body() ? 0 : 1);
  int status = -1;
  ::waitpid(child, &status, 0);
  return status;
}

TEST_CASE("A rank counts as alive from its lock until its process ends, however it ends") {
  const Descriptor file(::memfd_create("test", MFD_CLOEXEC));
  comm::LivenessLocks here(Descriptor(::dup(file.get())));
  here.lock(4);
  std::array<int, 2> pipe{};
  REQUIRE(::pipe(pipe.data()) == 0);
  const pid_t child = ::fork();
  if (child == 0) {
    comm::LivenessLocks there(Descriptor(::dup(file.get())));
    there.lock(7);
    const bool sees = there.is_alive(4) && !there.is_alive(5);
    (void)!::write(pipe[1], sees ? "+" : "-", 1);
    ::pause();
  }
  char seen = 0;
  REQUIRE(::read(pipe[0], &seen, 1) == 1);
  CHECK(seen == '+');
  CHECK(here.is_alive(7));
  CHECK_FALSE(here.is_alive(6));
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  CHECK_FALSE(here.is_alive(7));
  CHECK(outcome_of(
            [&] { return comm::LivenessLocks(Descriptor(::dup(file.get()))).is_alive(4); }) == 0);
}

TEST_CASE("The mailboxes of a group take no memory until they are used") {
  constexpr std::int64_t kSize = 512;
  auto segment = std::make_shared<comm::Segment>(std::int64_t{1} << 30, comm::Segment::Count());
  const auto extent = segment->reserve(comm::ControlBlock::bytes_for(kSize),
                                       comm::ControlBlock::common_bytes_for(kSize));
  const auto bytes_behind = [&] {
    struct stat status {};
    ::fstat(segment->file().get(), &status);
    return status.st_blocks * 512;
  };
  CHECK(bytes_behind() < 17'000 * kSize);
  auto& block = *reinterpret_cast<comm::ControlBlock*>(segment->data() + extent.offset);
  block.size = kSize;
  const std::int64_t before = bytes_behind();
  for (std::int64_t rank = 1; rank < 10; ++rank) {
    block.mailbox(rank - 1, rank).posted.value = 1;
    block.mailbox(511, rank).consumed.value = 2;
  }
  CHECK(bytes_behind() - before <= 10 * 4096);
  block.close(3, 4, "for a test");
  CHECK(bytes_behind() - before <= 10 * 4096);
  CHECK(block.mailbox(4, 5).posted.value == 1);
  segment->release(extent);
  CHECK(bytes_behind() == 0);
}

TEST_CASE("Another rank's offset of a control block is validated before use") {
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
}  // namespace dtrain::testing::comm_segment_exchange_test
