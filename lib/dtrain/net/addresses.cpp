#include "dtrain/net/addresses.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <memory>

#include "dtrain/base/descriptor.h"
#include "dtrain/net/socket.h"

namespace dtrain::net {

namespace {

using Found = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>;

Found parsed(const std::string& address) {
  addrinfo hints{};
  hints.ai_flags = AI_NUMERICHOST;
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  (void)!::getaddrinfo(address.c_str(), "9", &hints, &found);  // UDP: nothing is sent
  return {found, &::freeaddrinfo};
}

bool is_loopback(const sockaddr& address) {
  if (address.sa_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(address);
    return ntohl(v4.sin_addr.s_addr) >> 24 == IN_LOOPBACKNET;
  }
  if (address.sa_family != AF_INET6) return false;
  return IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6&>(address).sin6_addr);
}

/// Returns whether the address means something on one link alone.
bool is_of_link(const sockaddr& address) {
  if (address.sa_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(address);
    return ntohl(v4.sin_addr.s_addr) >> 16 == 0xa9fe;  // 169.254.0.0/16
  }
  return IN6_IS_ADDR_LINKLOCAL(&reinterpret_cast<const sockaddr_in6&>(address).sin6_addr);
}

}  // namespace

bool is_loopback(const std::string& address) {
  const Found found = parsed(address);
  return found && is_loopback(*found->ai_addr);
}

std::vector<std::string> interface_addresses() {
  ifaddrs* first = nullptr;
  if (::getifaddrs(&first) != 0) return {};
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> all(first, &::freeifaddrs);
  std::vector<std::string> result;
  for (const ifaddrs* each = first; each != nullptr; each = each->ifa_next) {
    if (each->ifa_addr == nullptr || (each->ifa_flags & IFF_UP) == 0) continue;
    const int family = each->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    if (is_loopback(*each->ifa_addr) || is_of_link(*each->ifa_addr)) continue;
    const std::size_t length = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    result.push_back(numeric_text(*each->ifa_addr, length));
  }
  return result;
}

std::string source_address_to(const std::string& address) {
  const Found to = parsed(address);
  if (!to) return {};
  const base::Descriptor socket(::socket(to->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (::connect(socket.get(), to->ai_addr, to->ai_addrlen) != 0) return {};
  return own_address_of(socket);
}

std::string reachable_address(const std::string& own, std::span<const std::string> all) {
  if (!own.empty() && !is_loopback(own)) return own;
  std::string result = own;
  for (const std::string& address : all) {
    if (address.empty() || is_loopback(address)) continue;
    const std::string source = source_address_to(address);
    if (source.empty()) continue;
    if (source != address) return source;  // it is another machine's
    result = source;
  }
  return result;
}

}  // namespace dtrain::net
