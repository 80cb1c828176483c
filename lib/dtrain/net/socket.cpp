#include "dtrain/net/socket.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include "dtrain/base/error.h"

namespace dtrain::net {

namespace {

using base::ErrorKind;
using std::chrono::milliseconds;

using Addresses = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>;

/// Without a result `reason` says why.
Addresses resolve(const std::string& host, std::int64_t port, std::string& reason) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int status = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (status != 0) {
    // It calls it a failure of the network when it cannot open a file.
    const base::Descriptor probe(::fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 0));
    const bool is_full = probe.get() < 0 && errno == EMFILE;
    reason = is_full ? std::strerror(EMFILE) : ::gai_strerror(status);
  }
  return {found, &::freeaddrinfo};
}

/// 0 when connected, else the errno.
int connect_once(const base::Descriptor& socket, const addrinfo& to, milliseconds patience) {
  if (::connect(socket.get(), to.ai_addr, to.ai_addrlen) == 0) return 0;
  if (errno != EINPROGRESS) return errno;
  pollfd waiting{.fd = socket.get(), .events = POLLOUT, .revents = 0};
  if (::poll(&waiting, 1, static_cast<int>(patience.count())) <= 0) return ETIMEDOUT;
  int error = 0;
  socklen_t length = sizeof error;
  ::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &length);
  return error;
}

}  // namespace

base::Descriptor connect_to(const std::string& host, std::int64_t port,
                            const base::Deadline& deadline, std::string& reason) {
  const Addresses addresses = resolve(host, port, reason);
  for (const addrinfo* to = addresses.get(); to != nullptr; to = to->ai_next) {
    base::Descriptor socket(::socket(to->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    const int error = socket.get() < 0 ? errno : connect_once(socket, *to, deadline.remaining());
    if (error == 0) return socket;
    reason = std::strerror(error);
  }
  return {};
}

std::string own_address_of(const base::Descriptor& socket) {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  char text[NI_MAXHOST] = "127.0.0.1";
  if (::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &length) == 0) {
    ::getnameinfo(reinterpret_cast<sockaddr*>(&address), length, text, sizeof text, nullptr, 0,
                  NI_NUMERICHOST);
  }
  return text;
}

int listen_at(const std::string& host, std::int64_t port) {
  std::string reason = "no address";
  bool is_taken = false;
  const Addresses addresses = resolve(host, port, reason);
  for (const addrinfo* at = addresses.get(); at != nullptr; at = at->ai_next) {
    base::Descriptor socket(::socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const int on = 1;
    ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (::bind(socket.get(), at->ai_addr, at->ai_addrlen) == 0 &&
        ::listen(socket.get(), SOMAXCONN) == 0) {
      return socket.release();
    }
    is_taken = errno == EADDRINUSE;
    reason = std::strerror(errno);
  }
  base::fail(is_taken ? ErrorKind::port : ErrorKind::comm,
             "rank 0 cannot serve the store at {}:{}: {}; choose another MASTER_ADDR or "
             "MASTER_PORT",
             host, port, reason);
}

std::pair<base::Descriptor, base::Descriptor> connected_pair() {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0) {
    base::fail(ErrorKind::comm, "no unix socket for the ranks to meet: {}", std::strerror(errno));
  }
  return {base::Descriptor(ends[0]), base::Descriptor(ends[1])};
}

}  // namespace dtrain::net
