#include "launcher/nodes/listener.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>

#include "dtrain/base/error.h"
#include "launcher/address.h"
#include "launcher/port_claim.h"

namespace launcher {
namespace {

using dtrain::base::Descriptor;
using dtrain::base::ErrorKind;
using dtrain::base::fail;

/// 0, or the errno.
int try_to_listen(const Address& address, Descriptor& listener) {
  listener = Descriptor(::socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const int on = 1;
  const int off = 0;
  ::setsockopt(listener.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (address.family() == AF_INET6) {
    ::setsockopt(listener.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
  }
  const bool good = ::bind(listener.get(), address.get(), address.size()) == 0 &&
                    ::listen(listener.get(), SOMAXCONN) == 0;
  return good ? 0 : errno;
}

/// At all addresses of both families, or of IPv4 alone where the machine has no IPv6.
int try_to_listen_everywhere(int port, Descriptor& listener) {
  const int error = try_to_listen(Address::any_of(AF_INET6, port), listener);
  if (error == 0 || error == EADDRINUSE) return error;
  return try_to_listen(Address::any_of(AF_INET, port), listener);
}

}  // namespace

bool is_loopback(const std::string& address) {
  in6_addr v6{};
  if (::inet_pton(AF_INET6, address.c_str(), &v6) == 1) return IN6_IS_ADDR_LOOPBACK(&v6);
  return address.starts_with("127.");
}

Descriptor listen_for_nodes(const std::string& host, int port) {
  const Address address = resolve_address(host, port);
  const bool is_own_name = host != "localhost" && host != address.text();
  Descriptor listener;
  // The system lets anybody listen at a port that another dtrun only holds.
  const PortClaim claim = claim_port(address);
  const int error = !claim.holder.empty() ? EADDRINUSE
                    : is_own_name && is_loopback(address.text())
                        ? try_to_listen_everywhere(port, listener)
                        : try_to_listen(address, listener);
  if (error == EADDRINUSE) {
    fail(ErrorKind::port,
         "--master-port: port {} of {} is used by {}; is another node 0 of this job running? Else "
         "give all nodes another one",
         port, host, claim.holder.empty() ? "another program" : claim.holder);
  }
  if (error == EADDRNOTAVAIL) {
    fail(ErrorKind::usage,
         "--master-addr: '{}' is not an address of this machine, and this is node 0", host);
  }
  if (error != 0) {
    fail(ErrorKind::port, "--master-port: cannot listen at port {} of {}: {}", port, host,
         std::strerror(error));
  }
  return listener;
}

Descriptor listen_at_free_port(const std::string& address) {
  Descriptor listener;
  if (const int error = try_to_listen(resolve_address(address, 0), listener); error != 0) {
    fail(ErrorKind::port, "cannot listen at a free port of {}: {}", address, std::strerror(error));
  }
  return listener;
}

}  // namespace launcher
