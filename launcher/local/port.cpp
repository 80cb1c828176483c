#include "launcher/local/port.h"

#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <utility>

#include "dtrain/base/error.h"
#include "dtrain/net/addresses.h"
#include "dtrain/net/socket.h"

namespace launcher {
namespace {

using dtrain::base::Descriptor;
using dtrain::base::ErrorKind;
using dtrain::base::fail;

// The port has the same offset in both families.
static_assert(offsetof(sockaddr_in, sin_port) == offsetof(sockaddr_in6, sin6_port));

/// An address and port of TCP, of either family.
struct Address {
  sockaddr_storage value{};
  socklen_t size = 0;

  [[nodiscard]] const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&value); }
  /// Numeric, without the port.
  [[nodiscard]] std::string text() const { return dtrain::net::numeric_text(*get(), size); }
  [[nodiscard]] int port() const {
    return ntohs(reinterpret_cast<const sockaddr_in*>(&value)->sin_port);
  }
  void set_port(int port) {
    reinterpret_cast<sockaddr_in*>(&value)->sin_port = htons(static_cast<std::uint16_t>(port));
  }
};

/// All addresses of this machine.
Address any_address(int family, int port) {
  Address address;  // all zeros is "any" in both families
  address.value.ss_family = static_cast<sa_family_t>(family);
  address.size = family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
  address.set_port(port);
  return address;
}

/// The first address of a name or numeric address; IPv4 addresses come first.
Address resolve(const std::string& host, int port) {
  std::string reason;
  const dtrain::net::Addresses found = dtrain::net::resolve(host, port, reason);
  if (!found) {
    fail(ErrorKind::usage,
         "--master-addr: cannot resolve '{}': {}; give an address of this machine", host, reason);
  }
  const addrinfo* chosen = found.get();
  while (chosen != nullptr && chosen->ai_family != AF_INET) chosen = chosen->ai_next;
  if (chosen == nullptr) chosen = found.get();
  Address address;
  std::memcpy(&address.value, chosen->ai_addr, chosen->ai_addrlen);
  address.size = chosen->ai_addrlen;
  return address;
}

// --- a claim -------------------------------------------------------------------------------------

/// Describes the process at the other end; empty if another user owns it, since anybody may bind
/// any name.
std::string holder_at(const Descriptor& connection) {
  ucred peer{};
  socklen_t size = sizeof(peer);
  if (::getsockopt(connection.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) return {};
  if (peer.uid != ::geteuid()) return {};
  // A process in another container on the same network may have no pid in this PID namespace.
  return peer.pid == 0 ? "another dtrun" : fmt::format("another dtrun (pid {})", peer.pid);
}

/// Tries once to bind the name or to find its holder.
///
/// Returns: empty while the holder has bound the name but does not listen yet, or is exiting.
std::optional<PortClaim> try_claim(const sockaddr_un& name, socklen_t size) {
  const auto* const address = reinterpret_cast<const sockaddr*>(&name);
  PortClaim claim{Descriptor(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)), {}};
  if (::bind(claim.socket.get(), address, size) == 0) {
    ::listen(claim.socket.get(), SOMAXCONN);  // another dtrun connects to find the holder
    return claim;
  }
  if (errno != EADDRINUSE) return PortClaim{};
  if (::connect(claim.socket.get(), address, size) == 0) {
    return PortClaim{{}, holder_at(claim.socket)};
  }
  // The holder accepts no connections, so its backlog may be full.
  if (errno == EAGAIN) return PortClaim{{}, "another dtrun"};
  if (errno == ECONNREFUSED) return std::nullopt;
  return PortClaim{};
}

PortClaim claim_port(const Address& address) {
  // An abstract name disappears with its process and, like the port, belongs to one network
  // namespace.
  const std::string text = fmt::format("dtrun-port-{}:{}", address.text(), address.port());
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  const std::size_t length = std::min(text.size(), sizeof(name.sun_path) - 1);
  std::memcpy(name.sun_path + 1, text.data(), length);
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + length);
  constexpr int kTries = 100;
  constexpr useconds_t kPause_us = 1000;
  for (int tries = 0; tries < kTries; ++tries) {
    if (auto claim = try_claim(name, size)) return *std::move(claim);
    ::usleep(kPause_us);
  }
  return {};
}

// --- sockets -------------------------------------------------------------------------------------

/// A bound socket, or none and the errno.
Descriptor bind_to(const Address& address, int type) {
  Descriptor socket(::socket(address.value.ss_family, type | SOCK_CLOEXEC, 0));
  if (!socket) return {};
  const int on = 1;
  const int off = 0;
  ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (address.value.ss_family == AF_INET6) {
    ::setsockopt(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
  }
  if (::bind(socket.get(), address.get(), address.size) == 0) return socket;
  const int error = errno;
  socket.reset();
  errno = error;
  return {};
}

/// 0, or the errno.
int try_to_listen(const Address& address, Descriptor& listener) {
  listener = bind_to(address, SOCK_STREAM | SOCK_NONBLOCK);
  return listener && ::listen(listener.get(), SOMAXCONN) == 0 ? 0 : errno;
}

/// Listens at all addresses of both families, or of IPv4 only if the machine has no IPv6.
int try_to_listen_everywhere(int port, Descriptor& listener) {
  const int error = try_to_listen(any_address(AF_INET6, port), listener);
  if (error == 0 || error == EADDRINUSE) return error;
  return try_to_listen(any_address(AF_INET, port), listener);
}

}  // namespace

ReservedPort reserve_port(const std::string& address, int port) {
  ReservedPort reserved;
  Address name = resolve(address, port);
  if (port != 0) reserved.claim = claim_port(name);
  if (!reserved.claim.holder.empty()) {
    fail(ErrorKind::port,
         "--master-port: port {} of {} is used by {}; give another one, or 0 for a free one", port,
         address, reserved.claim.holder);
  }
  reserved.socket = bind_to(name, SOCK_STREAM);
  if (!reserved.socket && errno == EADDRNOTAVAIL) {
    fail(ErrorKind::usage, "--master-addr: '{}' is not an address of this machine", address);
  }
  if (!reserved.socket) {
    fail(ErrorKind::port,
         "--master-port: port {} of {} cannot be bound: {}; give another one, or 0 for a free one",
         port, address, std::strerror(errno));
  }
  reserved.port = static_cast<int>(dtrain::net::port_of(reserved.socket));
  name.set_port(reserved.port);
  if (port == 0) reserved.claim = claim_port(name);  // so that no other dtrun uses this port
  return reserved;
}

NodeListener listen_for_nodes(const std::string& host, int port) {
  const Address address = resolve(host, port);
  const bool is_own_name = host != "localhost" && host != address.text();
  Descriptor listener;
  // The kernel lets any process listen at a port that another dtrun has only bound.
  PortClaim claim = claim_port(address);
  const int error = !claim.holder.empty() ? EADDRINUSE
                    : is_own_name && dtrain::net::is_loopback(address.text())
                        ? try_to_listen_everywhere(port, listener)
                        : try_to_listen(address, listener);
  if (error == EADDRINUSE) {
    fail(ErrorKind::port,
         "--master-port: port {} of {} is used by {}; if it is another node 0 of this job, stop "
         "it; otherwise give all nodes another port",
         port, host, claim.holder.empty() ? "another program" : claim.holder);
  }
  if (error == EADDRNOTAVAIL) {
    fail(ErrorKind::usage,
         "--master-addr: '{}' is not an address of this machine, which is node 0; give one of its "
         "addresses on all nodes",
         host);
  }
  if (error != 0) {
    fail(ErrorKind::port, "--master-port: cannot listen at port {} of {}: {}", port, host,
         std::strerror(error));
  }
  return {.socket = std::move(listener), .claim = std::move(claim)};
}

Descriptor listen_at_free_port(const std::string& address) {
  Descriptor listener;
  if (const int error = try_to_listen(resolve(address, 0), listener); error != 0) {
    fail(ErrorKind::port, "cannot listen at a free port of {}: {}", address, std::strerror(error));
  }
  return listener;
}

RendezvousSocket make_rendezvous_socket() {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
    fail(ErrorKind::spawn, "cannot create the ranks' rendezvous socket: {}", std::strerror(errno));
  }
  return {.rank0_end = Descriptor(ends[0]), .other_end = Descriptor(ends[1])};
}

}  // namespace launcher
