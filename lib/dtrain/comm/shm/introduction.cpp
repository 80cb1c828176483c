#include "dtrain/comm/shm/introduction.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <fstream>
#include <optional>
#include <span>
#include <system_error>
#include <thread>
#include <utility>

#include "dtrain/base/error.h"
#include "dtrain/base/printable.h"
#include "dtrain/base/readable.h"

namespace dtrain::comm {

namespace {

using base::ErrorKind;

std::string reason_of(int error) { return std::generic_category().message(error); }

struct Address {
  sockaddr_un name{};
  socklen_t length = 0;

  /// Throws: Error{comm} for a text that is too long for a name.
  explicit Address(const std::string& text) {
    if (text.empty() || text.size() >= sizeof name.sun_path) {
      base::fail(ErrorKind::comm, "\"{}\" is no name of a unix socket",
                 base::printable(text, sizeof name.sun_path));
    }
    name.sun_family = AF_UNIX;
    // A first byte of zero: no file.
    std::memcpy(name.sun_path + 1, text.data(), text.size());
    length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + text.size());
  }
  [[nodiscard]] const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&name); }
};

Descriptor unix_socket() {
  Descriptor socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (socket.get() < 0) base::fail(ErrorKind::comm, "no unix socket: {}", reason_of(errno));
  return socket;
}

/// One packet: the sender's rank, and its memory beside it.
struct Packet {
  std::int64_t rank = -1;
  iovec part{&rank, sizeof rank};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr header{};

  Packet() {
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    header.msg_control = control.data();
    header.msg_controllen = control.size();
  }
  Packet(const Packet&) = delete;
  Packet& operator=(const Packet&) = delete;
};

bool send_memory(const Descriptor& connection, std::int64_t own_rank, const Descriptor& memory) {
  Packet packet;
  packet.rank = own_rank;
  cmsghdr* rights = CMSG_FIRSTHDR(&packet.header);
  rights->cmsg_level = SOL_SOCKET;
  rights->cmsg_type = SCM_RIGHTS;
  rights->cmsg_len = CMSG_LEN(sizeof(int));
  const int descriptor = memory.get();
  std::memcpy(CMSG_DATA(rights), &descriptor, sizeof descriptor);
  return ::sendmsg(connection.get(), &packet.header, MSG_NOSIGNAL) ==
         static_cast<ssize_t>(sizeof packet.rank);
}

/// Waits until one of `sockets` has something to read, or an end, and returns which; nothing at the
/// deadline. Ranks that have met are watched meanwhile: one that ends fails the meeting.
std::optional<std::size_t> first_readable(std::span<const Descriptor* const> sockets,
                                          const std::vector<Acquaintance>& met,
                                          const Deadline& deadline) {
  std::vector<pollfd> waiting;
  for (const Descriptor* socket : sockets) waiting.push_back({socket->get(), POLLIN, 0});
  // A descriptor below 0, of a rank that is still to come, is passed over.
  for (const Acquaintance& rank : met) waiting.push_back({rank.connection.get(), POLLRDHUP, 0});
  while (!deadline.passed()) {
    if (::poll(waiting.data(), waiting.size(), static_cast<int>(deadline.remaining().count())) <= 0)
      continue;
    for (std::size_t index = 0; index < sockets.size(); ++index) {
      if (waiting[index].revents != 0) return index;
    }
    for (std::size_t rank = 0; rank < met.size(); ++rank) {
      if (waiting[sockets.size() + rank].revents == 0) continue;
      base::fail(ErrorKind::comm, "rank {} ended while the ranks met; what it printed says why",
                 rank);
    }
  }
  return std::nullopt;
}

/// The sender's rank and memory; nothing from one that is no rank or has gone.
///
/// Throws: Error{comm} when the memory came, but this process has too many files open to take it.
std::optional<std::int64_t> receive_memory(const Descriptor& connection, Descriptor& memory) {
  Packet packet;
  const ssize_t count =
      ::recvmsg(connection.get(), &packet.header, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
  const cmsghdr* rights = count > 0 ? CMSG_FIRSTHDR(&packet.header) : nullptr;
  if (rights != nullptr && rights->cmsg_level == SOL_SOCKET && rights->cmsg_type == SCM_RIGHTS &&
      rights->cmsg_len == CMSG_LEN(sizeof(int))) {
    int descriptor = -1;
    std::memcpy(&descriptor, CMSG_DATA(rights), sizeof descriptor);
    memory = Descriptor(descriptor);
  } else if (count > 0 && (packet.header.msg_flags & MSG_CTRUNC) != 0) {
    base::fail(ErrorKind::comm, "cannot take the memory of rank {}: {}", packet.rank,
               reason_of(EMFILE));
  }
  if (count != static_cast<ssize_t>(sizeof packet.rank) || memory.get() < 0) return std::nullopt;
  return packet.rank;
}

bool is_of_this_user(const Descriptor& connection) {
  ucred peer{};
  socklen_t length = sizeof peer;
  return ::getsockopt(connection.get(), SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0 &&
         peer.uid == ::geteuid();
}

[[noreturn]] void fail_to_meet(std::int64_t rank, const Deadline& deadline) {
  if (deadline.passed()) {
    base::fail(ErrorKind::timeout, "rank {} did not share its memory within {} (--comm-timeout)",
               rank, base::readable_time(base::Seconds(deadline.limit()).count()));
  }
  base::fail(ErrorKind::comm,
             "rank {} ended before it had shared its memory; what it printed says "
             "why",
             rank);
}

/// 0 when connected, else the errno. A doorstep that is full of visitors is tried again.
int connect_within(const Descriptor& connection, const Address& address, const Deadline& deadline) {
  while (::connect(connection.get(), address.get(), address.length) != 0) {
    if (errno != EAGAIN && errno != EINTR) return errno;
    if (deadline.passed()) return ETIMEDOUT;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return 0;
}

Acquaintance visit(std::int64_t own_rank, std::int64_t peer, const std::string& doorstep,
                   const Descriptor& own_memory, const std::vector<Acquaintance>& met,
                   const Deadline& deadline) {
  Acquaintance result{.connection = unix_socket(), .memory = {}};
  if (connect_within(result.connection, Address(doorstep), deadline) != 0 ||
      !is_of_this_user(result.connection) ||
      !send_memory(result.connection, own_rank, own_memory) ||
      !first_readable(std::array{&std::as_const(result.connection)}, met, deadline) ||
      receive_memory(result.connection, result.memory) != peer) {
    fail_to_meet(peer, deadline);
  }
  return result;
}

/// Receives the higher ranks, in whatever order they come; one that says nothing keeps no other
/// from being heard.
class Reception {
 public:
  Reception(std::int64_t own_rank, const Doorstep& own, const Descriptor& own_memory)
      : own_rank_(own_rank), own_(own), own_memory_(own_memory) {}

  /// Waits for the next event; false at the deadline.
  bool wait(std::vector<Acquaintance>& all, const Deadline& deadline) {
    std::vector<const Descriptor*> sockets{&own_.socket};
    for (const Descriptor& visitor : silent_) sockets.push_back(&visitor);
    const auto index = first_readable(sockets, all, deadline);
    if (!index) return false;
    if (*index == 0) {
      Descriptor visitor(
          ::accept4(own_.socket.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (visitor.get() < 0 && (errno == EMFILE || errno == ENFILE)) {
        base::fail(ErrorKind::comm, "cannot meet the other ranks: {}", reason_of(errno));
      }
      if (visitor.get() >= 0 && is_of_this_user(visitor)) silent_.push_back(std::move(visitor));
    } else {
      const auto place = silent_.begin() + static_cast<std::ptrdiff_t>(*index - 1);
      Acquaintance visitor{.connection = std::move(*place), .memory = {}};
      silent_.erase(place);
      hear(std::move(visitor), all);
    }
    return true;
  }

 private:
  void hear(Acquaintance visitor, std::vector<Acquaintance>& all) {
    const auto rank = receive_memory(visitor.connection, visitor.memory);
    if (!rank && has_hung_up(visitor.connection)) {
      base::fail(ErrorKind::comm,
                 "a rank ended before it had shared its memory; what it printed says why");
    }
    if (!rank || *rank <= own_rank_ || *rank >= static_cast<std::int64_t>(all.size())) return;
    if (!send_memory(visitor.connection, own_rank_, own_memory_)) return;
    all[static_cast<std::size_t>(*rank)] = std::move(visitor);
  }

  std::int64_t own_rank_;
  const Doorstep& own_;
  const Descriptor& own_memory_;
  std::vector<Descriptor> silent_;  // visitors that have not said who they are
};

}  // namespace

std::string host_of_process() {
  const char* const file = "/proc/sys/kernel/random/boot_id";
  std::string boot_id;
  errno = 0;
  std::getline(std::ifstream(file), boot_id);
  if (boot_id.empty()) {
    base::fail(ErrorKind::comm, "cannot read {}: {}", file, reason_of(errno));
  }
  std::array<char, 64> network{};
  (void)!::readlink("/proc/self/ns/net", network.data(), network.size() - 1);
  return fmt::format("{} {}", boot_id, network.data());
}

Doorstep open_doorstep() {
  std::array<std::uint64_t, 2> random{};
  (void)!::getrandom(random.data(), sizeof random, 0);
  Doorstep result{.socket = unix_socket(),
                  .name = fmt::format("dtrain-{:016x}{:016x}", random[0], random[1])};
  const Address address(result.name);
  if (::bind(result.socket.get(), address.get(), address.length) != 0 ||
      ::listen(result.socket.get(), SOMAXCONN) != 0) {
    base::fail(ErrorKind::comm, "no unix socket to listen at: {}", reason_of(errno));
  }
  return result;
}

// Each visits the lower ranks in turn, then waits for the higher ones; so rank 0 answers at once,
// and every other when all below it have answered.
std::vector<Acquaintance> introduce(std::int64_t own_rank, const Doorstep& own,
                                    const std::vector<std::string>& doorsteps,
                                    const Descriptor& own_memory, const Deadline& deadline) {
  std::vector<Acquaintance> all(doorsteps.size());
  for (std::int64_t peer = 0; peer < own_rank; ++peer) {
    const auto index = static_cast<std::size_t>(peer);
    all[index] = visit(own_rank, peer, doorsteps[index], own_memory, all, deadline);
  }
  Reception reception(own_rank, own, own_memory);
  for (std::size_t peer = static_cast<std::size_t>(own_rank) + 1; peer < all.size();) {
    if (all[peer].connection.get() >= 0) {
      ++peer;
    } else if (!reception.wait(all, deadline)) {
      fail_to_meet(static_cast<std::int64_t>(peer), deadline);
    }
  }
  return all;
}

bool has_hung_up(const Descriptor& connection) {
  pollfd waiting{.fd = connection.get(), .events = POLLRDHUP, .revents = 0};
  return ::poll(&waiting, 1, 0) > 0;
}

}  // namespace dtrain::comm
