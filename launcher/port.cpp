#include "launcher/port.h"

#include <sys/socket.h>

#include <cerrno>
#include <cstring>

#include "dtrain/base/error.h"
#include "launcher/address.h"

namespace launcher {
namespace {

using dtrain::base::Descriptor;
using dtrain::base::ErrorKind;
using dtrain::base::fail;

Descriptor bound_socket(const Address& name, const std::string& address) {
  Descriptor socket(::socket(name.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!socket) fail(ErrorKind::port, "no socket for a port: {}", std::strerror(errno));
  const int on = 1;
  ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (::bind(socket.get(), name.get(), name.size()) == 0) {
    return socket;
  }
  if (errno == EADDRNOTAVAIL) {
    fail(ErrorKind::usage, "--master-addr: '{}' is not an address of this machine", address);
  }
  fail(ErrorKind::port,
       "--master-port: port {} of {} cannot be bound: {}; give another one, or 0 for a free one",
       name.port(), address, std::strerror(errno));
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
  Address name = resolve_address(address, port);
  if (port != 0) reserved.claim = claim_port(name);
  if (!reserved.claim.holder.empty()) {
    fail(ErrorKind::port,
         "--master-port: port {} of {} is used by {}; give another one, or 0 for a free one", port,
         address, reserved.claim.holder);
  }
  reserved.socket = bound_socket(name, address);
  name = Address::of_socket(reserved.socket);
  reserved.port = name.port();
  if (port == 0) reserved.claim = claim_port(name);  // against a dtrun that is given this number
  return reserved;
}

}  // namespace launcher
