#include "dtrain/net/tcp_owner.h"

#include <fmt/format.h>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>

#include "dtrain/base/descriptor.h"
#include "dtrain/base/error.h"

namespace dtrain::net {

namespace {

using base::ErrorKind;

constexpr std::string_view kEstablished = "01";  // TCP_ESTABLISHED in /proc/net/tcp

/// Port and address as netlink wants them, both in the network's order.
void fill_in(const sockaddr_storage& from, __be16& port, std::array<__be32, 4>& address) {
  if (from.ss_family == AF_INET) {
    sockaddr_in v4{};
    std::memcpy(&v4, &from, sizeof v4);
    port = v4.sin_port;
    address[0] = v4.sin_addr.s_addr;
  } else {
    sockaddr_in6 v6{};
    std::memcpy(&v6, &from, sizeof v6);
    port = v6.sin6_port;
    std::memcpy(address.data(), &v6.sin6_addr, sizeof v6.sin6_addr);
  }
}

struct NetlinkRequest {
  nlmsghdr header{};
  inet_diag_req_v2 body{};
};

NetlinkRequest request_for(const TcpEnd& end) {
  NetlinkRequest request;
  request.header.nlmsg_len = sizeof request;
  request.header.nlmsg_type = SOCK_DIAG_BY_FAMILY;
  request.header.nlmsg_flags = NLM_F_REQUEST;
  request.body.sdiag_family = static_cast<__u8>(end.local.ss_family);
  request.body.sdiag_protocol = IPPROTO_TCP;
  request.body.idiag_states = ~0U;
  std::array<__be32, 4> local{};
  std::array<__be32, 4> remote{};
  inet_diag_sockid& id = request.body.id;
  fill_in(end.local, id.idiag_sport, local);
  fill_in(end.remote, id.idiag_dport, remote);
  std::memcpy(id.idiag_src, local.data(), sizeof id.idiag_src);
  std::memcpy(id.idiag_dst, remote.data(), sizeof id.idiag_dst);
  id.idiag_cookie[0] = id.idiag_cookie[1] = INET_DIAG_NOCOOKIE;
  return request;
}

/// As /proc/net/tcp6 writes an address: words of the network's bytes, read as the machine's. An
/// address of IPv4 becomes the one that a socket of IPv6 has for it.
std::string proc_text(const sockaddr_storage& address) {
  __be16 port = 0;
  std::array<__be32, 4> words{};
  fill_in(address, port, words);
  if (address.ss_family == AF_INET) words = {0, 0, htonl(0xFFFF), words[0]};
  return fmt::format("{:08X}{:08X}{:08X}{:08X}:{:04X}", words[0], words[1], words[2], words[3],
                     ntohs(port));
}

/// Finds an end in the table `name`. prefix: what its addresses lack of those that proc_text gives.
std::optional<TcpOwner> owner_in(const char* name, std::string_view prefix, const TcpEnd& end) {
  const std::string local = proc_text(end.local);
  const std::string remote = proc_text(end.remote);
  errno = 0;
  std::ifstream table(name);
  std::string line;
  if (!std::getline(table, line)) {  // the heading
    base::fail(ErrorKind::comm,
               "cannot see whose a connection is ({}: {}); give every rank the same "
               "DTRAIN_JOB_TOKEN",
               name, std::strerror(errno));
  }
  while (std::getline(table, line)) {
    std::istringstream words(line);
    std::string number, from, to, state, queues, timer, retransmits, timeouts;
    TcpOwner owner;
    words >> number >> from >> to >> state >> queues >> timer >> retransmits >> owner.user >>
        timeouts >> owner.inode;
    if (!words || from.insert(0, prefix) != local || to.insert(0, prefix) != remote) continue;
    owner.is_connected = state == kEstablished;
    return owner;
  }
  return std::nullopt;
}

}  // namespace

std::optional<TcpOwner> owner_by_netlink(const TcpEnd& end) {
  const base::Descriptor kernel(::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_SOCK_DIAG));
  const NetlinkRequest request = request_for(end);
  if (kernel.get() < 0 || ::send(kernel.get(), &request, sizeof request, 0) < 0) return {};
  alignas(nlmsghdr) std::array<char, 1024> answer{};
  // The kernel has answered before send returned.
  const ssize_t count = ::recv(kernel.get(), answer.data(), answer.size(), MSG_DONTWAIT);
  nlmsghdr header{};
  inet_diag_msg found{};
  if (count < static_cast<ssize_t>(NLMSG_LENGTH(sizeof found))) return {};
  std::memcpy(&header, answer.data(), sizeof header);
  std::memcpy(&found, answer.data() + NLMSG_HDRLEN, sizeof found);
  // Without such a connection the kernel may name the socket that listens at that port.
  if (header.nlmsg_type != SOCK_DIAG_BY_FAMILY ||
      found.id.idiag_dport != request.body.id.idiag_dport) {
    return {};
  }
  return TcpOwner{.user = found.idiag_uid,
                  .inode = found.idiag_inode,
                  .is_connected = found.idiag_state == TCP_ESTABLISHED};
}

std::optional<TcpOwner> owner_by_table(const TcpEnd& end) {
  const std::string mapped = proc_text(end.local).substr(0, 24);
  const bool is_v4 = mapped == fmt::format("{:016X}{:08X}", 0, htonl(0xFFFF));
  if (is_v4) {
    if (auto owner = owner_in("/proc/net/tcp", mapped, end)) return owner;
    if (::access("/proc/net/tcp6", F_OK) != 0) return std::nullopt;  // a machine without IPv6
  }
  return owner_in("/proc/net/tcp6", "", end);
}

std::optional<uid_t> user_of_tcp_peer(int descriptor) {
  TcpEnd own;
  socklen_t local_length = sizeof own.local;
  socklen_t remote_length = sizeof own.remote;
  if (::getsockname(descriptor, reinterpret_cast<sockaddr*>(&own.local), &local_length) != 0 ||
      ::getpeername(descriptor, reinterpret_cast<sockaddr*>(&own.remote), &remote_length) != 0) {
    return std::nullopt;
  }
  const TcpEnd other{.local = own.remote, .remote = own.local};
  // Netlink gives one answer for an unknown connection and an unsupported question: if it knows
  // this end, its answer about the other end counts.
  const auto owner = owner_by_netlink(own) ? owner_by_netlink(other) : owner_by_table(other);
  // The kernel assigns a closed end to user 0, whoever owned it.
  if (!owner || !owner->is_connected || owner->inode == 0) return std::nullopt;
  return owner->user;
}

}  // namespace dtrain::net
