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
#include <chrono>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string_view>

#include "dtrain/base/error.h"
#include "dtrain/base/io/descriptor.h"
#include "dtrain/base/text/text.h"
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

bool is_loopback_address(const sockaddr& address) {
  if (address.sa_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(address);
    return ntohl(v4.sin_addr.s_addr) >> 24 == IN_LOOPBACKNET;
  }
  if (address.sa_family != AF_INET6) return false;
  return IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6&>(address).sin6_addr);
}

/// Returns whether the address is link-local.
bool is_link_local(const sockaddr& address) {
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

/// Calls `visit` with each IPv4 and IPv6 address of the interfaces that are up. Returns false and
/// sets errno if the system does not list them.
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

using base::ErrorKind;
using base::fail;

// SLURM's controller may be busy or down.
constexpr std::chrono::seconds kScontrolLimit(10);
constexpr std::size_t kMaxPrinted = std::size_t{1} << 16;

/// How this machine resolves a host name.
struct Resolution {
  bool is_known = false;
  bool is_loopback = false;  ///< to the loopback alone
  std::string why;           ///< why the name is unusable; empty: it is usable
};

Resolution resolution_of(const std::string& host) {
  std::string why;
  const Addresses found = resolve(host, 0, why);
  if (!found) return {.why = why};
  for (const addrinfo* each = found.get(); each != nullptr; each = each->ai_next) {
    if (!is_loopback(numeric_text(*each->ai_addr, each->ai_addrlen))) {
      return {.is_known = true, .why = {}};
    }
  }
  return {.is_known = true, .is_loopback = true, .why = "it is the loopback address here"};
}

bool is_usable(const Resolution& resolution) {
  return resolution.is_known && !resolution.is_loopback;
}

/// Returns whether the name is safe as an unquoted shell word.
bool is_plain(const std::string& host) {
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
  return host.find_first_not_of(kPlain) == std::string::npos && !host.starts_with('-');
}

/// The output of `scontrol` about a node; empty if the program is missing or SLURM's controller
/// does not answer.
std::string ask_scontrol(const std::string& host) {
  if (!is_plain(host)) return {};
  const std::string command =
      fmt::format("exec timeout -s KILL {} scontrol --oneliner show node {} 2>/dev/null",
                  kScontrolLimit.count(), host);
  const std::unique_ptr<FILE, int (*)(FILE*)> output(::popen(command.c_str(), "re"), &::pclose);
  if (!output) return {};
  std::string printed(kMaxPrinted, '\0');
  printed.resize(std::fread(printed.data(), 1, printed.size(), output.get()));
  return printed;
}

}  // namespace

bool is_loopback(const std::string& address) {
  const Found found = parsed(address);
  return found && is_loopback_address(*found->ai_addr);
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
    if (is_loopback_address(*each.ifa_addr) || is_link_local(*each.ifa_addr)) return;
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
      // A link-local IPv6 address is meaningless without its interface.
      if (family == AF_INET || !is_link_local(*each.ifa_addr))
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
  for (const std::string_view name : base::split(names, ',')) {
    const auto found = std::ranges::find(all, name, &Interface::name);
    if (found != all.end()) return *found;
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

bool is_remote(const std::string& address) {
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
    if (source != address) return source;  // `address` is another machine's
    result = source;
  }
  return result;
}

std::string node_address_in(const std::string& printed) {
  constexpr std::string_view kWord = " NodeAddr=";
  const auto at = printed.find(kWord);
  if (at == std::string::npos) return {};
  const auto start = at + kWord.size();
  return printed.substr(start, printed.find_first_of(" \n", start) - start);
}

std::string address_of_first_node(const base::SlurmStep& step) {
  if (!step.master_addr.empty()) return step.master_addr;
  std::string host = first_host_of(step);
  const Resolution own = resolution_of(host);
  if (is_usable(own)) return host;
  // Debian maps a host's own name to the loopback. The other nodes resolve the name differently,
  // and node 0 then listens at all its addresses (listen_for_hosts).
  if (own.is_loopback && step.node == 0) return host;
  std::string address = node_address_in(ask_scontrol(host));
  const Resolution reported = address.empty() ? Resolution{} : resolution_of(address);
  if (is_usable(reported)) return address;
  fail(ErrorKind::usage,
       "cannot find the address of {}, the first node of this SLURM step, by its name ({}) or by "
       "scontrol show node ({}); set MASTER_ADDR to an address of that node that all nodes reach",
       base::printable(host), own.why,
       address.empty() ? "no NodeAddr"
                       : fmt::format("{}: {}", base::printable(address), reported.why));
}

}  // namespace dtrain::net
