#include "launcher/port.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <memory>

#include "dtrain/base/error.h"

namespace launcher {
namespace {

using dtrain::base::Descriptor;
using dtrain::base::ErrorKind;
using dtrain::base::fail;

sockaddr_in resolve(const std::string& address) {
  sockaddr_in result{};
  result.sin_family = AF_INET;
  if (::inet_pton(AF_INET, address.c_str(), &result.sin_addr) == 1) return result;
  addrinfo hints{};
  hints.ai_family = AF_INET;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (const int error = ::getaddrinfo(address.c_str(), nullptr, &hints, &found); error != 0) {
    fail(ErrorKind::usage, "--master-addr: '{}' is not known: {}; give an address of this machine",
         address, ::gai_strerror(error));
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(found, &::freeaddrinfo);
  std::memcpy(&result, found->ai_addr, sizeof(result));
  return result;
}

Descriptor bound_socket(const sockaddr_in& name, const std::string& address) {
  Descriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!socket) fail(ErrorKind::port, "no socket for a port: {}", std::strerror(errno));
  const int on = 1;
  ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (::bind(socket.get(), reinterpret_cast<const sockaddr*>(&name), sizeof(name)) == 0) {
    return socket;
  }
  if (errno == EADDRNOTAVAIL) {
    fail(ErrorKind::usage, "--master-addr: '{}' is not an address of this machine", address);
  }
  fail(ErrorKind::port,
       "--master-port: port {} of {} cannot be bound: {}; give another one, or 0 for a free one",
       ntohs(name.sin_port), address, std::strerror(errno));
}

}  // namespace

Door make_door() {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
    fail(ErrorKind::spawn, "cannot make a socket for the ranks to meet: {}", std::strerror(errno));
  }
  return {.inside = Descriptor(ends[0]), .outside = Descriptor(ends[1])};
}

ReservedPort reserve_port(const std::string& address, int port) {
  ReservedPort reserved;
  sockaddr_in name = resolve(address);
  name.sin_port = htons(static_cast<std::uint16_t>(port));
  if (port != 0) reserved.claim = claim_port(name);
  if (!reserved.claim.holder.empty()) {
    fail(ErrorKind::port,
         "--master-port: port {} of {} is used by {}; give another one, or 0 for a free one", port,
         address, reserved.claim.holder);
  }
  reserved.socket = bound_socket(name, address);
  socklen_t size = sizeof(name);
  ::getsockname(reserved.socket.get(), reinterpret_cast<sockaddr*>(&name), &size);
  reserved.port = ntohs(name.sin_port);
  if (port == 0) reserved.claim = claim_port(name);  // against a dtrun that is given this number
  return reserved;
}

}  // namespace launcher
