// Returns the port of a bound TCP socket. Does not need LibTorch.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdint>

namespace dtrain::testing {

[[nodiscard]] inline std::int64_t port_of(int descriptor) {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  if (::getsockname(descriptor, reinterpret_cast<sockaddr*>(&address), &length) != 0) return 0;
  // The port has the same offset in IPv4 and IPv6 addresses.
  return ntohs(reinterpret_cast<const sockaddr_in&>(address).sin_port);
}

}  // namespace dtrain::testing
