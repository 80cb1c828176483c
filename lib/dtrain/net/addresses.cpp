#include "dtrain/net/addresses.h"

#include <arpa/inet.h>
#include <fmt/ranges.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>

#include "dtrain/base/descriptor.h"
#include "dtrain/base/error.h"
#include "dtrain/base/printable.h"
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

bool is_of_loopback(const sockaddr& address) {
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

std::string text_of(const sockaddr& address) {
  const bool is_v4 = address.sa_family == AF_INET;
  return numeric_text(address, is_v4 ? sizeof(sockaddr_in) : sizeof(sockaddr_in6));
}

/// Visits the IPv4 and IPv6 addresses of all interfaces that are up. Returns false and sets errno
/// if the system does not list them.
template <typename Visit>
bool for_each_address(Visit visit) {
  ifaddrs* first = nullptr;
  if (::getifaddrs(&first) != 0) return false;
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> all(first, &::freeifaddrs);
  for (const ifaddrs* each = first; each != nullptr; each = each->ifa_next) {
    if (each->ifa_addr == nullptr || (each->ifa_flags & IFF_UP) == 0) continue;
    const int family = each->ifa_addr->sa_family;
    if (family == AF_INET || family == AF_INET6) visit(*each);
  }
  return true;
}

}  // namespace

bool is_loopback(const std::string& address) {
  const Found found = parsed(address);
  return found && is_of_loopback(*found->ai_addr);
}

std::string address_bytes(const std::string& address) {
  in6_addr bytes{};
  const auto* const first = reinterpret_cast<const char*>(&bytes);
  if (::inet_pton(AF_INET, address.c_str(), &bytes) == 1) return {first, sizeof(in_addr)};
  if (::inet_pton(AF_INET6, address.c_str(), &bytes) == 1) return {first, sizeof(in6_addr)};
  return {};
}

std::string address_of_bytes(std::string_view bytes) {
  if (bytes.size() != sizeof(in_addr) && bytes.size() != sizeof(in6_addr)) return {};
  const int family = bytes.size() == sizeof(in_addr) ? AF_INET : AF_INET6;
  char text[INET6_ADDRSTRLEN] = "";
  (void)!::inet_ntop(family, bytes.data(), text, sizeof text);
  return text;
}

std::vector<std::string> interface_addresses() {
  std::vector<std::string> result;
  (void)for_each_address([&](const ifaddrs& each) {
    if (is_of_loopback(*each.ifa_addr) || is_of_link(*each.ifa_addr)) return;
    result.push_back(text_of(*each.ifa_addr));
  });
  return result;
}

std::vector<Interface> interfaces() {
  std::vector<Interface> result;
  for (const int family : {AF_INET, AF_INET6}) {
    const bool is_listed = for_each_address([&](const ifaddrs& each) {
      const bool is_known = std::ranges::count(result, each.ifa_name, &Interface::name) > 0;
      if (each.ifa_addr->sa_family != family || is_known) return;
      // Such an address of IPv6 means nothing without the interface.
      if (family == AF_INET || !is_of_link(*each.ifa_addr))
        result.push_back({each.ifa_name, text_of(*each.ifa_addr)});
    });
    if (is_listed) continue;
    base::fail(base::ErrorKind::comm,
               "cannot list this machine's network interfaces: {}; let the process open one more "
               "file, a netlink socket, or name no interface",
               std::strerror(errno));
  }
  return result;
}

Interface find_interface(std::string_view names, std::string_view source) {
  const std::vector<Interface> all = interfaces();
  for (std::string_view rest = names; !rest.empty();) {
    const std::string_view name = rest.substr(0, rest.find(','));
    const auto found = std::ranges::find(all, name, &Interface::name);
    if (found != all.end()) return *found;
    rest.remove_prefix(std::min(name.size() + 1, rest.size()));
  }
  std::vector<std::string_view> known;
  for (const Interface& each : all) known.push_back(each.name);
  base::fail(
      base::ErrorKind::usage,
      "{}: found {}, but this machine has no such interface that is up with an address; it has "
      "{}",
      source, base::printable(names, 80), fmt::join(known, ", "));
}

std::string source_address_to(const std::string& address) {
  const Found to = parsed(address);
  if (!to) return {};
  const base::Descriptor socket(::socket(to->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (::connect(socket.get(), to->ai_addr, to->ai_addrlen) != 0) return {};
  return own_address_of(socket);
}

bool is_of_other_machine(const std::string& address) {
  if (address.empty() || is_loopback(address)) return false;
  const std::string source = source_address_to(address);
  return !source.empty() && source != address;
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
