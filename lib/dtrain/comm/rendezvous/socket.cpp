#include "dtrain/comm/rendezvous/socket.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <thread>

#include "dtrain/base/error.h"
#include "dtrain/comm/rendezvous/descriptor.h"

namespace dtrain::comm {

namespace {

using base::ErrorKind;
using std::chrono::milliseconds;

using Addresses = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>;

Addresses resolve(const std::string& host, std::int64_t port, int& status) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  status = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  return {found, &::freeaddrinfo};
}

std::string own_address_of(int descriptor) {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  char text[NI_MAXHOST] = "127.0.0.1";
  if (::getsockname(descriptor, reinterpret_cast<sockaddr*>(&address), &length) == 0) {
    ::getnameinfo(reinterpret_cast<sockaddr*>(&address), length, text, sizeof text, nullptr, 0,
                  NI_NUMERICHOST);
  }
  return text;
}

/// 0 when connected, else the errno.
int connect_once(const Descriptor& socket, const addrinfo& to, milliseconds patience) {
  if (::connect(socket.get(), to.ai_addr, to.ai_addrlen) == 0) return 0;
  if (errno != EINPROGRESS) return errno;
  pollfd waiting{.fd = socket.get(), .events = POLLOUT, .revents = 0};
  if (::poll(&waiting, 1, static_cast<int>(patience.count())) <= 0) return ETIMEDOUT;
  int error = 0;
  socklen_t length = sizeof error;
  ::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &length);
  return error;
}

/// The own address once connected; empty with `reason` otherwise.
std::string try_to_reach(const std::string& host, std::int64_t port, milliseconds patience,
                         std::string& reason) {
  int status = 0;
  const Addresses addresses = resolve(host, port, status);
  if (status != 0) reason = ::gai_strerror(status);
  for (const addrinfo* to = addresses.get(); to != nullptr; to = to->ai_next) {
    const Descriptor socket(::socket(to->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    const int error = socket.get() < 0 ? errno : connect_once(socket, *to, patience);
    if (error == 0) return own_address_of(socket.get());
    reason = std::strerror(error);
  }
  return {};
}

}  // namespace

std::string reach(const std::string& host, std::int64_t port, const Deadline& deadline) {
  std::string reason = "no address";
  milliseconds pause(5);
  while (true) {
    std::string own = try_to_reach(host, port, deadline.remaining(), reason);
    if (!own.empty()) return own;
    if (deadline.passed()) break;
    std::this_thread::sleep_for(std::min(pause, deadline.remaining()));
    pause = std::min(pause * 2, milliseconds(200));
  }
  base::fail(ErrorKind::timeout,
             "no answer from the store at {}:{} within {:.1f} s ({}): rank 0 serves it; check that "
             "rank 0 runs and that MASTER_ADDR and MASTER_PORT are its",
             host, port, base::Seconds(deadline.limit()).count(), reason);
}

int listen_at(const std::string& host, std::int64_t port) {
  int status = 0;
  const Addresses addresses = resolve(host, port, status);
  std::string reason = status != 0 ? ::gai_strerror(status) : "no address";
  for (const addrinfo* at = addresses.get(); at != nullptr; at = at->ai_next) {
    Descriptor socket(::socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const int on = 1;
    ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (::bind(socket.get(), at->ai_addr, at->ai_addrlen) == 0 &&
        ::listen(socket.get(), SOMAXCONN) == 0) {
      return socket.release();
    }
    reason = std::strerror(errno);
  }
  base::fail(ErrorKind::comm,
             "rank 0 cannot serve the store at {}:{}: {}; choose another MASTER_ADDR or "
             "MASTER_PORT",
             host, port, reason);
}

std::int64_t port_of(int descriptor) {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  char text[NI_MAXSERV] = "0";
  if (::getsockname(descriptor, reinterpret_cast<sockaddr*>(&address), &length) != 0 ||
      ::getnameinfo(reinterpret_cast<sockaddr*>(&address), length, nullptr, 0, text, sizeof text,
                    NI_NUMERICSERV) != 0) {
    base::fail(ErrorKind::comm,
               "descriptor {}, handed over to serve the store on, is no bound "
               "socket: {}",
               descriptor, std::strerror(errno));
  }
  return std::stoll(text);
}

}  // namespace dtrain::comm
