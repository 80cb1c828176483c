// The port of a bound TCP socket, without LibTorch.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdint>

namespace dtrain::testing {

[[nodiscard]] inline std::int64_t port_of(int descriptor) {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  if (::getsockname(descriptor, reinterpret_cast<sockaddr*>(&address), &length) != 0) return 0;
  // IPv6's port lies where IPv4's does.
  return ntohs(reinterpret_cast<const sockaddr_in&>(address).sin_port);
}

}  // namespace dtrain::testing
