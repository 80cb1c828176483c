#include "dtrain/net/socket.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <iterator>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "dtrain/base/error.h"
#include "dtrain/net/addresses.h"

namespace dtrain::net {
namespace {

using base::ErrorKind;
using std::chrono::milliseconds;

constexpr milliseconds kAttemptDelay(250);
constexpr milliseconds kLastAttemptLimit(2000);

/// Concurrent connection attempts, of which the first to succeed is used ("happy eyeballs").
class ConnectRace {
 public:
  void start(const addrinfo& to) {
    base::Descriptor socket(::socket(to.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    const bool is_refused = socket.get() < 0 || ::connect(socket.get(), to.ai_addr, to.ai_addrlen);
    if (is_refused && errno != EINPROGRESS) {
      error_ = errno;
    } else {
      attempts_.push_back(std::move(socket));
    }
  }

  /// Returns the first connection made; empty at `end` or when all attempts have failed.
  base::Descriptor first_before(const base::Deadline& end) {
    do {
      std::vector<pollfd> waiting;
      for (const auto& attempt : attempts_) waiting.push_back({attempt.get(), POLLOUT, 0});
      ::poll(waiting.data(), waiting.size(), static_cast<int>(end.remaining().count()));
      for (std::size_t index = waiting.size(); index-- > 0;) {
        if (waiting[index].revents == 0) continue;
        base::Descriptor attempt = std::move(attempts_[index]);
        attempts_.erase(attempts_.begin() + static_cast<std::ptrdiff_t>(index));
        socklen_t length = sizeof error_;
        ::getsockopt(attempt.get(), SOL_SOCKET, SO_ERROR, &error_, &length);
        if (error_ == 0) return attempt;
      }
    } while (!attempts_.empty() && !end.passed());
    return {};
  }

  [[nodiscard]] bool is_active() const { return !attempts_.empty(); }
  /// The errno of the last failed attempt; ETIMEDOUT while attempts are under way.
  [[nodiscard]] int error() const { return is_active() || error_ == 0 ? ETIMEDOUT : error_; }

 private:
  std::vector<base::Descriptor> attempts_;
  int error_ = 0;
};

/// Opens a listening socket; empty with errno on failure.
base::Descriptor listen_once(const addrinfo& at) {
  base::Descriptor socket(::socket(at.ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = 1;
  ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  const bool listens = ::bind(socket.get(), at.ai_addr, at.ai_addrlen) == 0 &&
                       ::listen(socket.get(), SOMAXCONN) == 0;
  if (listens) return socket;
  const int error = errno;
  socket.reset();
  errno = error;
  return {};
}

[[noreturn]] void fail_to_listen(const std::string& host, std::int64_t port, bool is_taken,
                                 const std::string& reason) {
  base::fail(is_taken ? ErrorKind::port : ErrorKind::comm,
             "rank 0 cannot serve the store at {}:{}: {}; choose another MASTER_ADDR or "
             "MASTER_PORT",
             host, port, reason);
}

/// The addresses to which other machines may resolve `host`, without duplicates.
std::vector<std::string> addresses_for_hosts(const std::string& host, std::string& reason) {
  std::vector<std::string> found;
  const Addresses addresses = resolve(host, 0, reason);
  for (const addrinfo* each = addresses.get(); each != nullptr; each = each->ai_next) {
    std::string text = numeric_text(*each->ai_addr, each->ai_addrlen);
    if (text == host) return {host};
    if (std::ranges::find(found, text) == found.end()) found.push_back(std::move(text));
  }
  if (!found.empty() && std::ranges::all_of(found, &is_loopback))
    std::ranges::copy(interface_addresses(), std::back_inserter(found));
  return found;
}

/// Listens at the addresses that are local. Stops at the first whose port is taken.
std::vector<base::Descriptor> listen_at_own(const std::vector<std::string>& addresses,
                                            std::int64_t port, bool& is_taken,
                                            std::string& reason) {
  std::vector<base::Descriptor> sockets;
  for (const std::string& address : addresses) {
    const Addresses at = resolve(address, port, reason);
    base::Descriptor socket = at ? listen_once(*at) : base::Descriptor();
    is_taken = at && socket.get() < 0 && errno == EADDRINUSE;
    if (socket.get() < 0) reason = fmt::format("{}: {}", address, std::strerror(errno));
    if (is_taken) return {};
    if (socket.get() < 0) continue;
    if (port == 0) port = port_of(socket);
    sockets.push_back(std::move(socket));
  }
  return sockets;
}

// While nobody listens at an ephemeral port, the kernel may assign that very port to the client,
// which then connects to itself (TCP self-connect).
bool is_connected_to_itself(const base::Descriptor& socket) {
  sockaddr_storage own{};
  sockaddr_storage other{};
  socklen_t own_length = sizeof own;
  socklen_t other_length = sizeof other;
  const bool is_known =
      ::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&own), &own_length) == 0 &&
      ::getpeername(socket.get(), reinterpret_cast<sockaddr*>(&other), &other_length) == 0;
  return is_known && own_length == other_length && std::memcmp(&own, &other, own_length) == 0;
}

[[noreturn]] void fail_for_files(int error) {
  base::fail(base::ErrorKind::comm, "cannot accept a connection from another rank: {}",
             std::strerror(error));
}

/// The msghdr of a packet: one number, and space for its descriptors.
struct Message {
  std::int64_t rank = -1;
  iovec part{&rank, sizeof rank};
  std::vector<std::max_align_t> control;
  msghdr header{};

  explicit Message(std::size_t descriptors)
      : control(CMSG_SPACE(descriptors * sizeof(int)) / sizeof(std::max_align_t) + 1) {
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    header.msg_control = control.data();
    header.msg_controllen = CMSG_SPACE(descriptors * sizeof(int));
  }
  Message(const Message&) = delete;
  Message& operator=(const Message&) = delete;
};

/// All received descriptors: alignment leaves space for more than were asked for.
std::vector<base::Descriptor> descriptors_of(msghdr& header) {
  std::vector<base::Descriptor> found;
  for (cmsghdr* part = CMSG_FIRSTHDR(&header); part != nullptr; part = CMSG_NXTHDR(&header, part)) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
    for (std::size_t at = CMSG_LEN(0); at + sizeof(int) <= part->cmsg_len; at += sizeof(int)) {
      int descriptor = -1;
      std::memcpy(&descriptor, reinterpret_cast<const char*>(part) + at, sizeof descriptor);
      found.emplace_back(descriptor);
    }
  }
  return found;
}

}  // namespace

Addresses resolve(const std::string& host, std::int64_t port, std::string& reason) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int status = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (status != 0) {
    // getaddrinfo reports a network failure when it cannot open a file.
    const base::Descriptor probe(::fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 0));
    const bool is_full = probe.get() < 0 && errno == EMFILE;
    reason = is_full ? std::strerror(EMFILE) : ::gai_strerror(status);
  }
  return {found, &::freeaddrinfo};
}

base::Descriptor connect_to(const std::string& host, std::int64_t port,
                            const base::Deadline& deadline, std::string& reason) {
  const Addresses addresses = resolve(host, port, reason);
  ConnectRace race;
  for (const addrinfo* to = addresses.get(); to != nullptr; to = to->ai_next) {
    race.start(*to);
    if (!race.is_active()) continue;
    const milliseconds limit = to->ai_next == nullptr ? kLastAttemptLimit : kAttemptDelay;
    const base::Deadline turn(std::min(limit, deadline.remaining()));
    base::Descriptor winner = race.first_before(turn);
    if (winner.get() >= 0 && !is_connected_to_itself(winner)) return winner;
  }
  if (addresses) reason = std::strerror(race.error());
  return {};
}

std::string numeric_text(const sockaddr& address, std::size_t length) {
  char text[NI_MAXHOST] = "127.0.0.1";
  ::getnameinfo(&address, static_cast<socklen_t>(length), text, sizeof text, nullptr, 0,
                NI_NUMERICHOST);
  return text;
}

std::string own_address_of(const base::Descriptor& socket) {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  if (::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &length) != 0) {
    return "127.0.0.1";
  }
  return numeric_text(reinterpret_cast<const sockaddr&>(address), length);
}

std::int64_t port_of(const base::Descriptor& socket) {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  ::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &length);
  // IPv6's port lies where IPv4's does.
  return ntohs(reinterpret_cast<const sockaddr_in&>(address).sin_port);
}

int listen_at(const std::string& host, std::int64_t port) {
  std::string reason = "no address";
  bool is_taken = false;
  const Addresses addresses = resolve(host, port, reason);
  for (const addrinfo* at = addresses.get(); at != nullptr; at = at->ai_next) {
    base::Descriptor socket = listen_once(*at);
    if (socket.get() >= 0) return socket.release();
    is_taken = errno == EADDRINUSE;
    reason = std::strerror(errno);
    // Other ranks try this address first, and would reach the program that holds it.
    if (is_taken) break;
  }
  fail_to_listen(host, port, is_taken, reason);
}

std::vector<base::Descriptor> listen_for_hosts(const std::string& host, std::int64_t port) {
  std::string reason = "no address";
  const std::vector<std::string> addresses = addresses_for_hosts(host, reason);
  bool is_taken = false;
  // A port that is free at one address may be taken at another.
  for (int tries = port == 0 ? 16 : 1; tries > 0; --tries) {
    auto sockets = listen_at_own(addresses, port, is_taken, reason);
    if (!sockets.empty()) return sockets;
    if (!is_taken) break;
  }
  fail_to_listen(host, port, is_taken, reason);
}

std::pair<base::Descriptor, base::Descriptor> connected_pair() {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0) {
    base::fail(ErrorKind::comm, "cannot create a unix socket for the rendezvous: {}",
               std::strerror(errno));
  }
  return {base::Descriptor(ends[0]), base::Descriptor(ends[1])};
}

int send_packet(const base::Descriptor& socket, std::int64_t rank, std::span<const int> descriptors,
                const base::Deadline& deadline) {
  Message message(descriptors.size());
  message.rank = rank;
  cmsghdr* rights = CMSG_FIRSTHDR(&message.header);
  rights->cmsg_level = SOL_SOCKET;
  rights->cmsg_type = SCM_RIGHTS;
  rights->cmsg_len = CMSG_LEN(descriptors.size_bytes());
  std::memcpy(CMSG_DATA(rights), descriptors.data(), descriptors.size_bytes());
  while (::sendmsg(socket.get(), &message.header, MSG_NOSIGNAL | MSG_DONTWAIT) < 0) {
    // ETOOMANYREFS: too many descriptors are in flight.
    const bool may_try_again = errno == EAGAIN || errno == EINTR || errno == ETOOMANYREFS;
    if (!may_try_again || deadline.passed()) return errno;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return 0;
}

Packet receive_packet(const base::Descriptor& socket, std::size_t max_descriptors) {
  Message message(max_descriptors);
  const ssize_t count = ::recvmsg(socket.get(), &message.header, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
  if (count <= 0) {
    const bool may_come = count < 0 && (errno == EAGAIN || errno == EINTR);
    return {.is_closed = !may_come};
  }
  std::vector<base::Descriptor> descriptors = descriptors_of(message.header);
  // The kernel drops the descriptors that this process has no room for. If one was expected, an
  // unauthenticated sender may simply have sent too many.
  const bool lacks_some = (message.header.msg_flags & MSG_CTRUNC) != 0;
  if (lacks_some && (descriptors.empty() || max_descriptors > 1)) fail_for_files(EMFILE);
  if (count != static_cast<ssize_t>(sizeof message.rank) || descriptors.size() > max_descriptors)
    return {};
  return {.rank = message.rank, .descriptors = std::move(descriptors)};
}

base::Descriptor accept_connection(const base::Descriptor& listener,
                                   const std::function<bool()>& make_room) {
  while (true) {
    base::Descriptor taken(
        ::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    const int error = errno;
    if (taken.get() >= 0 || (error != EMFILE && error != ENFILE)) return taken;
    if (!make_room()) fail_for_files(error);
  }
}

}  // namespace dtrain::net
