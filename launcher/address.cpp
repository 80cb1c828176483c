#include "launcher/address.h"

#include <netdb.h>
#include <netinet/in.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>

#include "dtrain/base/error.h"

namespace launcher {
namespace {

// Both families have the port at one place.
static_assert(offsetof(sockaddr_in, sin_port) == offsetof(sockaddr_in6, sin6_port));

}  // namespace

Address::Address(const sockaddr* address, socklen_t size) : size_(size) {
  std::memcpy(&value_, address, size);
}

Address Address::any_of(int family, int port) {
  Address address;  // all zeros is "any" in both families
  address.value_.ss_family = static_cast<sa_family_t>(family);
  address.size_ = family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
  address.set_port(port);
  return address;
}

Address Address::of_socket(const dtrain::base::Descriptor& socket) {
  Address address;
  address.size_ = sizeof(address.value_);
  ::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address.value_), &address.size_);
  return address;
}

int Address::port() const { return ntohs(reinterpret_cast<const sockaddr_in*>(&value_)->sin_port); }

void Address::set_port(int port) {
  reinterpret_cast<sockaddr_in*>(&value_)->sin_port = htons(static_cast<std::uint16_t>(port));
}

std::string Address::text() const {
  char text[NI_MAXHOST] = "";
  ::getnameinfo(get(), size_, text, sizeof(text), nullptr, 0, NI_NUMERICHOST);
  return text;
}

Address resolve_address(const std::string& host, int port) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (const int error = ::getaddrinfo(host.c_str(), nullptr, &hints, &found); error != 0) {
    dtrain::base::fail(dtrain::base::ErrorKind::usage,
                       "--master-addr: '{}' is not known: {}; give an address of this machine",
                       host, ::gai_strerror(error));
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(found, &::freeaddrinfo);
  const addrinfo* chosen = found;
  for (const addrinfo* each = found; each != nullptr; each = each->ai_next) {
    if (each->ai_family != AF_INET) continue;
    chosen = each;
    break;
  }
  Address address(chosen->ai_addr, chosen->ai_addrlen);
  address.set_port(port);
  return address;
}

}  // namespace launcher
