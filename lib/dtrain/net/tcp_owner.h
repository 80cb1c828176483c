// Finds the owner of a local TCP connection's other end.
#pragma once

#include <sys/socket.h>
#include <sys/types.h>

#include <cstdint>
#include <optional>

namespace dtrain::net {

/// The user whose process holds the other end of a TCP connection within this machine; nothing if
/// that end is not in this network namespace, or closed.
///
/// Throws: Error{comm} where the kernel tells neither way.
[[nodiscard]] std::optional<uid_t> user_of_tcp_peer(int descriptor);

/// One end of a TCP connection, seen from it.
struct TcpEnd {
  sockaddr_storage local{};
  sockaddr_storage remote{};
};

/// The kernel's information on such an end.
struct TcpOwner {
  uid_t user = 0;
  std::uint64_t inode = 0;  ///< 0: no process holds it any more, and `user` means nothing
  bool is_connected = false;
};

/// Asks the kernel for this one connection (netlink): the same work however many there are. Nothing
/// where it knows none, or does not answer.
[[nodiscard]] std::optional<TcpOwner> owner_by_netlink(const TcpEnd& end);

/// Reads the tables of all connections, /proc/net/tcp and tcp6: a socket of IPv6 may have a
/// connection of IPv4. Nothing where it is not in there.
///
/// Throws: Error{comm} where the table cannot be read.
[[nodiscard]] std::optional<TcpOwner> owner_by_table(const TcpEnd& end);

}  // namespace dtrain::net
