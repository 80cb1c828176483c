#include "dtrain/comm/internal/host/segment_exchange.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <utility>

#include "dtrain/base/error.h"
#include "dtrain/base/text/text.h"
#include "dtrain/net/proof.h"
#include "dtrain/net/socket.h"

namespace dtrain::comm {

namespace {

using base::ErrorKind;

struct Address {
  sockaddr_un name{};
  socklen_t length = 0;

  /// Throws: Error{comm} for a text that is too long for a name.
  explicit Address(const std::string& text) {
    if (text.empty() || text.size() >= sizeof name.sun_path) {
      base::fail(ErrorKind::comm,
                 "cannot connect to the unix socket \"{}\": its name is empty or too long; start "
                 "every rank with the same build of dtrain",
                 base::printable(text, sizeof name.sun_path));
    }
    name.sun_family = AF_UNIX;
    // A leading zero byte selects the abstract namespace.
    std::memcpy(name.sun_path + 1, text.data(), text.size());
    length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + text.size());
  }
  [[nodiscard]] const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&name); }
};

base::Descriptor unix_socket() {
  base::Descriptor socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (socket.get() < 0)
    base::fail(ErrorKind::comm, "cannot create a unix socket: {}", std::strerror(errno));
  return socket;
}

bool is_of_this_user(const base::Descriptor& connection) {
  return net::user_of_unix_peer(connection.get()) == ::geteuid();
}

[[noreturn]] void fail_for_exited_rank(std::int64_t rank) {
  base::fail(ErrorKind::comm, "rank {} exited during the rendezvous; see its own error message",
             rank);
}

[[noreturn]] void fail_for_missing_segment(std::int64_t rank, const base::Deadline& deadline) {
  if (deadline.passed()) {
    base::fail(ErrorKind::timeout, "rank {} did not share its memory within {} (--comm-timeout)",
               rank, base::readable_time(base::Seconds(deadline.limit()).count()));
  }
  base::fail(ErrorKind::comm,
             "rank {} exited before it had shared its memory; see its own error message", rank);
}

/// Returns whether the connection was made. Blocks in connect(), because the system then serves a
/// full backlog in order; a caller that polls would lose its turn.
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

/// The leader's part: collects the other ranks' segments in any order, then sends all of them to
/// every rank. A silent connection delays nobody.
class HostLeader {
 public:
  HostLeader(const HostMember& self, const base::Descriptor& own_memory)
      : self_(self), own_memory_(own_memory), members_(self.ranks.size()) {}

  /// Returns when every rank has sent its segment.
  void collect(const base::Deadline& deadline) {
    for (std::size_t place = 1; place < members_.size();) {
      if (members_[place].memory) {
        ++place;
      } else if (!wait(deadline)) {
        fail_for_missing_segment(self_.ranks[place], deadline);
      }
    }
  }

  void distribute(const base::Deadline& deadline) {
    for (std::size_t first = 0; first < members_.size(); first += net::kMaxDescriptors) {
      std::vector<int> files;
      for (std::size_t place = first; place < members_.size(); ++place) {
        if (files.size() < net::kMaxDescriptors) files.push_back(memory(place).get());
      }
      for (std::size_t place = 1; place < members_.size(); ++place) {
        const base::Descriptor& connection = members_[place].connection;
        if (net::send_packet(connection, static_cast<std::int64_t>(first), files, deadline) != 0) {
          fail_for_missing_segment(self_.ranks[place], deadline);
        }
      }
    }
  }

  [[nodiscard]] const base::Descriptor& memory(std::size_t place) const {
    return place == 0 ? own_memory_ : members_[place].memory;
  }

 private:
  struct Member {
    base::Descriptor connection;
    base::Descriptor memory;
  };

  /// Waits for the next event; false at the deadline. Fails if a member exits.
  bool wait(const base::Deadline& deadline) {
    // Connected processes come first, or an endless stream of connections would starve them.
    std::vector<pollfd> polled;
    for (const auto& connection : unidentified_) polled.push_back({connection.get(), POLLIN, 0});
    polled.push_back({self_.listener.socket.get(), POLLIN, 0});
    // poll ignores negative descriptors, those of ranks that have not connected yet.
    for (const Member& each : members_) polled.push_back({each.connection.get(), POLLRDHUP, 0});
    do {
      if (deadline.passed()) return false;
    } while (::poll(polled.data(), polled.size(), static_cast<int>(deadline.remaining().count())) <=
             0);
    const std::size_t num_unidentified = unidentified_.size();
    for (std::size_t place = 0; place < members_.size(); ++place) {
      if (polled[num_unidentified + 1 + place].revents != 0)
        fail_for_exited_rank(self_.ranks[place]);
    }
    for (std::size_t index = num_unidentified; index-- > 0;) {
      if (polled[index].revents != 0) receive_segment(index);
    }
    if (polled[num_unidentified].revents != 0) accept();
    return true;
  }

  void accept() {
    base::Descriptor connection = net::accept_connection(self_.listener.socket);
    if (connection && is_of_this_user(connection)) unidentified_.push_back(std::move(connection));
  }

  void receive_segment(std::size_t index) {
    Member member{.connection = std::move(unidentified_[index]), .memory = {}};
    unidentified_.erase(unidentified_.begin() + static_cast<std::ptrdiff_t>(index));
    net::Packet packet = net::receive_packet(member.connection, 1);
    if (packet.is_closed) {
      base::fail(ErrorKind::comm,
                 "a rank exited before it had shared its memory; see its own error message");
    }
    const auto place = std::ranges::lower_bound(self_.ranks, packet.rank);
    const bool is_member = place != self_.ranks.end() && *place == packet.rank &&
                           place != self_.ranks.begin() && packet.descriptors.size() == 1;
    if (!is_member) return;
    member.memory = std::move(packet.descriptors.front());
    members_[static_cast<std::size_t>(place - self_.ranks.begin())] = std::move(member);
  }

  const HostMember& self_;
  const base::Descriptor& own_memory_;
  std::vector<Member> members_;  // by position in self_.ranks; this rank's own is empty
  std::vector<base::Descriptor> unidentified_;  // connections whose rank is not known yet
};

/// The other ranks' part: sends the own segment to the leader and receives all segments.
void exchange_with_leader(HostMember self, const base::Descriptor& own_memory,
                          const base::Deadline& deadline,
                          const std::function<void(std::int64_t, base::Descriptor)>& take) {
  const std::int64_t first = self.ranks.front();
  base::Descriptor connection = std::move(self.leader_connection);
  if (!connection) {
    connection = unix_socket();
    if (!connect_within(connection, Address(self.socket_name), deadline)) {
      fail_for_missing_segment(first, deadline);
    }
  }
  if (!is_of_this_user(connection) ||
      net::send_packet(connection, self.rank, std::array{own_memory.get()}, deadline) != 0) {
    fail_for_missing_segment(first, deadline);
  }
  for (std::size_t place = 0; place < self.ranks.size();) {
    pollfd waiting{connection.get(), POLLIN, 0};
    if (deadline.passed()) fail_for_missing_segment(first, deadline);
    if (::poll(&waiting, 1, static_cast<int>(deadline.remaining().count())) <= 0) continue;
    net::Packet packet = net::receive_packet(connection, net::kMaxDescriptors);
    const bool fits = packet.rank == static_cast<std::int64_t>(place) &&
                      !packet.descriptors.empty() &&
                      packet.descriptors.size() <= self.ranks.size() - place;
    if (!fits) fail_for_missing_segment(first, deadline);
    for (base::Descriptor& each : packet.descriptors) take(self.ranks[place++], std::move(each));
  }
}

}  // namespace

ListenSocket open_listen_socket(std::int64_t rank) {
  std::array<std::uint64_t, 2> random{};
  (void)!::getrandom(random.data(), sizeof random, 0);
  ListenSocket result{.socket = unix_socket(),
                      .name = fmt::format("dtrain-{}-{:016x}{:016x}", rank, random[0], random[1])};
  const Address address(result.name);
  if (::bind(result.socket.get(), address.get(), address.length) != 0 ||
      ::listen(result.socket.get(), SOMAXCONN) != 0) {
    base::fail(ErrorKind::comm, "cannot listen at a unix socket: {}", std::strerror(errno));
  }
  return result;
}

ConnectResult try_connect(const std::string& socket_name) {
  const Address address(socket_name);
  base::Descriptor connection = unix_socket();
  if (::connect(connection.get(), address.get(), address.length) == 0) {
    return {.is_same_host = true, .connection = std::move(connection)};
  }
  return {.is_same_host = errno == EAGAIN, .connection = {}};
}

void exchange_segments(HostMember self, const base::Descriptor& own_memory,
                       const base::Deadline& deadline,
                       const std::function<void(std::int64_t, base::Descriptor)>& take) {
  if (self.rank != self.ranks.front()) {
    return exchange_with_leader(std::move(self), own_memory, deadline, take);
  }
  HostLeader leader(self, own_memory);
  leader.collect(deadline);
  leader.distribute(deadline);
  for (std::size_t place = 0; place < self.ranks.size(); ++place) {
    take(self.ranks[place],
         base::Descriptor(::fcntl(leader.memory(place).get(), F_DUPFD_CLOEXEC, 0)));
  }
}

}  // namespace dtrain::comm
