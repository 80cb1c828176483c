#include "dtrain/comm/shm/introduction.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <fstream>
#include <optional>
#include <span>
#include <utility>

#include "dtrain/base/error.h"
#include "dtrain/base/printable.h"
#include "dtrain/base/readable.h"
#include "dtrain/net/packet.h"
#include "dtrain/net/proof.h"

namespace dtrain::comm {

namespace {

using base::ErrorKind;

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

base::Descriptor unix_socket() {
  base::Descriptor socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (socket.get() < 0) base::fail(ErrorKind::comm, "no unix socket: {}", std::strerror(errno));
  return socket;
}

/// Waits until one of `sockets` has something to read, or an end, and returns the first of them
/// that has; nothing at the deadline. Meanwhile it watches the ranks that have met: one that ends
/// fails the meeting.
std::optional<std::size_t> first_readable(std::span<const base::Descriptor* const> sockets,
                                          const std::vector<PeerConnection>& met,
                                          const base::Deadline& deadline) {
  std::vector<pollfd> waiting;
  for (const base::Descriptor* socket : sockets) waiting.push_back({socket->get(), POLLIN, 0});
  // A descriptor below 0, of a rank that is still to come, is passed over.
  for (const PeerConnection& rank : met) waiting.push_back({rank.connection.get(), POLLRDHUP, 0});
  while (!deadline.passed()) {
    if (::poll(waiting.data(), waiting.size(), static_cast<int>(deadline.remaining().count())) <= 0)
      continue;
    for (std::size_t rank = 0; rank < met.size(); ++rank) {
      if (waiting[sockets.size() + rank].revents == 0) continue;
      base::fail(ErrorKind::comm, "rank {} ended while the ranks met; what it printed says why",
                 rank);
    }
    for (std::size_t index = 0; index < sockets.size(); ++index) {
      if (waiting[index].revents != 0) return index;
    }
  }
  return std::nullopt;
}

bool is_of_this_user(const base::Descriptor& connection) {
  return net::user_of_unix_peer(connection.get()) == ::geteuid();
}

[[noreturn]] void fail_to_meet(std::int64_t rank, const base::Deadline& deadline) {
  if (deadline.passed()) {
    base::fail(ErrorKind::timeout, "rank {} did not share its memory within {} (--comm-timeout)",
               rank, base::readable_time(base::Seconds(deadline.limit()).count()));
  }
  base::fail(ErrorKind::comm,
             "rank {} ended before it had shared its memory; what it printed says "
             "why",
             rank);
}

/// Returns whether the connection was made. At a full socket the system admits this rank in its
/// turn, as soon as there is room; a caller that tried again and again would lose its turn.
bool connect_within(const base::Descriptor& connection, const Address& address,
                    const base::Deadline& deadline) {
  const int flags = ::fcntl(connection.get(), F_GETFL);
  ::fcntl(connection.get(), F_SETFL, flags & ~O_NONBLOCK);
  bool is_connected = false;
  do {
    const auto left = deadline.remaining();
    const timeval patience{.tv_sec = left.count() / 1000, .tv_usec = left.count() % 1000 * 1000};
    ::setsockopt(connection.get(), SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
    is_connected = ::connect(connection.get(), address.get(), address.length) == 0;
  } while (!is_connected && (errno == EAGAIN || errno == EINTR) && !deadline.passed());
  ::fcntl(connection.get(), F_SETFL, flags);
  return is_connected;
}

base::Descriptor connected_to(std::int64_t peer, const std::string& socket_name,
                              const base::Deadline& deadline) {
  base::Descriptor connection = unix_socket();
  if (!connect_within(connection, Address(socket_name), deadline)) fail_to_meet(peer, deadline);
  return connection;
}

PeerConnection visit(std::int64_t own_rank, std::int64_t peer, base::Descriptor connection,
                     const base::Descriptor& own_memory, const std::vector<PeerConnection>& met,
                     const base::Deadline& deadline) {
  PeerConnection result{.connection = std::move(connection), .memory = {}};
  if (!is_of_this_user(result.connection) ||
      net::send_packet(result.connection, own_rank, own_memory, deadline) != 0 ||
      !first_readable(std::array{&std::as_const(result.connection)}, met, deadline)) {
    fail_to_meet(peer, deadline);
  }
  net::Packet packet = net::receive_packet(result.connection);
  if (packet.descriptor.get() < 0 || packet.rank != peer) fail_to_meet(peer, deadline);
  result.memory = std::move(packet.descriptor);
  return result;
}

/// Receives the higher ranks in any order; a silent one does not hold up the others.
class Reception {
 public:
  Reception(std::int64_t own_rank, const ListenSocket& own, const base::Descriptor& own_memory)
      : own_rank_(own_rank), own_(own), own_memory_(own_memory) {}

  /// Waits for the next event; false at the deadline.
  bool wait(std::vector<PeerConnection>& all, const base::Deadline& deadline) {
    // Those connected come first, or an endless stream of strangers would keep them waiting.
    std::vector<const base::Descriptor*> sockets;
    for (const base::Descriptor& visitor : silent_) sockets.push_back(&visitor);
    sockets.push_back(&own_.socket);
    const auto index = first_readable(sockets, all, deadline);
    if (!index) return false;
    if (*index == silent_.size()) {
      base::Descriptor visitor = net::accept_connection(own_.socket);
      if (visitor.get() >= 0 && is_of_this_user(visitor)) silent_.push_back(std::move(visitor));
    } else {
      const auto place = silent_.begin() + static_cast<std::ptrdiff_t>(*index);
      PeerConnection visitor{.connection = std::move(*place), .memory = {}};
      silent_.erase(place);
      hear(std::move(visitor), all, deadline);
    }
    return true;
  }

 private:
  void hear(PeerConnection visitor, std::vector<PeerConnection>& all,
            const base::Deadline& deadline) {
    net::Packet packet = net::receive_packet(visitor.connection);
    if (packet.descriptor.get() < 0 && has_hung_up(visitor.connection)) {
      base::fail(ErrorKind::comm,
                 "a rank ended before it had shared its memory; what it printed says why");
    }
    const bool is_rank =
        packet.rank > own_rank_ && packet.rank < static_cast<std::int64_t>(all.size());
    if (packet.descriptor.get() < 0 || !is_rank) return;
    if (net::send_packet(visitor.connection, own_rank_, own_memory_, deadline) != 0) return;
    visitor.memory = std::move(packet.descriptor);
    all[static_cast<std::size_t>(packet.rank)] = std::move(visitor);
  }

  std::int64_t own_rank_;
  const ListenSocket& own_;
  const base::Descriptor& own_memory_;
  std::vector<base::Descriptor> silent_;  // visitors that have not said who they are
};

}  // namespace

std::string host_of_process() {
  const char* const file = "/proc/sys/kernel/random/boot_id";
  std::string boot_id;
  errno = 0;
  std::getline(std::ifstream(file), boot_id);
  if (boot_id.empty()) {
    base::fail(ErrorKind::comm, "cannot read {}: {}", file, std::strerror(errno));
  }
  std::array<char, 64> network{};
  (void)!::readlink("/proc/self/ns/net", network.data(), network.size() - 1);
  return fmt::format("{} {}", boot_id, network.data());
}

ListenSocket open_listen_socket(std::int64_t rank) {
  std::array<std::uint64_t, 2> random{};
  (void)!::getrandom(random.data(), sizeof random, 0);
  ListenSocket result{.socket = unix_socket(),
                      .name = fmt::format("dtrain-{}-{:016x}{:016x}", rank, random[0], random[1])};
  const Address address(result.name);
  if (::bind(result.socket.get(), address.get(), address.length) != 0 ||
      ::listen(result.socket.get(), SOMAXCONN) != 0) {
    base::fail(ErrorKind::comm, "no unix socket to listen at: {}", std::strerror(errno));
  }
  return result;
}

Reach reach(const std::string& socket_name) {
  const Address address(socket_name);
  base::Descriptor connection = unix_socket();
  if (::connect(connection.get(), address.get(), address.length) == 0) {
    return {.is_here = true, .connection = std::move(connection)};
  }
  return {.is_here = errno == EAGAIN, .connection = {}};
}

// Each rank connects to the lower ranks in turn, then waits for the higher ones; so rank 0 answers
// at once, and every other when all below it have answered.
std::vector<PeerConnection> exchange_segments(std::int64_t own_rank, const ListenSocket& own,
                                              const std::vector<std::string>& socket_names,
                                              const base::Descriptor& own_memory,
                                              const base::Deadline& deadline,
                                              base::Descriptor to_first) {
  std::vector<PeerConnection> all(socket_names.size());
  for (std::int64_t peer = 0; peer < own_rank; ++peer) {
    const auto index = static_cast<std::size_t>(peer);
    if (socket_names[index].empty()) continue;
    base::Descriptor connection = std::move(to_first);  // at first
    if (connection.get() < 0) connection = connected_to(peer, socket_names[index], deadline);
    all[index] = visit(own_rank, peer, std::move(connection), own_memory, all, deadline);
  }
  Reception reception(own_rank, own, own_memory);
  for (std::size_t peer = static_cast<std::size_t>(own_rank) + 1; peer < all.size();) {
    if (all[peer].connection.get() >= 0 || socket_names[peer].empty()) {
      ++peer;
    } else if (!reception.wait(all, deadline)) {
      fail_to_meet(static_cast<std::int64_t>(peer), deadline);
    }
  }
  return all;
}

bool has_hung_up(const base::Descriptor& connection) {
  pollfd waiting{.fd = connection.get(), .events = POLLRDHUP, .revents = 0};
  return ::poll(&waiting, 1, 0) > 0;
}

}  // namespace dtrain::comm
