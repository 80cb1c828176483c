// TCP sockets of the rendezvous, and unix-socket packets that carry file descriptors.
#pragma once

#include <netdb.h>
#include <sys/socket.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "dtrain/base/clock.h"
#include "dtrain/base/io/descriptor.h"

namespace dtrain::net {

/// A list of addresses from getaddrinfo.
using Addresses = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>;
/// Resolves a host name or numeric address to TCP addresses; on failure returns null and sets
/// `reason`.
[[nodiscard]] Addresses resolve(const std::string& host, std::int64_t port, std::string& reason);

/// Tries once to connect to host:port. Starts a connection to each address of the name, 0.25 s
/// apart, and returns the first one that is established. Gives up 2 s after the last start; the
/// descriptor is then empty and `reason` is set.
[[nodiscard]] base::Descriptor connect_to(const std::string& host, std::int64_t port,
                                          const base::Deadline& deadline, std::string& reason);

/// Formats an address numerically.
[[nodiscard]] std::string numeric_text(const sockaddr& address, std::size_t length);

/// The numeric address of this end of a connection.
[[nodiscard]] std::string own_address_of(const base::Descriptor& socket);

/// Opens a socket that listens at the address of `host` only, not at all interfaces of this
/// machine.
///
/// Throws: Error{comm} naming the address and the reason.
[[nodiscard]] int listen_at(const std::string& host, std::int64_t port);

/// Opens sockets at all local addresses to which other machines may resolve `host`, all at one port
/// (0: a free one). If the name resolves only to loopback addresses, as a machine's own name does
/// on Debian, also listens at this machine's interface addresses, to which other machines resolve
/// it. A numeric address is used as given.
///
/// Throws: as listen_at; also if the port is taken at one of the addresses.
[[nodiscard]] std::vector<base::Descriptor> listen_for_hosts(const std::string& host,
                                                             std::int64_t port);

/// The port at which a socket listens.
[[nodiscard]] std::int64_t port_of(const base::Descriptor& socket);

/// Creates two connected unix stream sockets.
///
/// Throws: Error{comm} with the reason.
[[nodiscard]] std::pair<base::Descriptor, base::Descriptor> connected_pair();

/// The system's limit on descriptors in one packet (SCM_MAX_FD).
inline constexpr std::size_t kMaxDescriptors = 253;

/// Sends `rank` and copies of up to kMaxDescriptors descriptors over a SOCK_SEQPACKET unix socket.
/// Returns 0 or the errno.
[[nodiscard]] int send_packet(const base::Descriptor& socket, std::int64_t rank,
                              std::span<const int> descriptors, const base::Deadline& deadline);

/// A packet that receive_packet has read.
struct Packet {
  std::int64_t rank = -1;                          ///< as claimed by the sender
  std::vector<base::Descriptor> descriptors = {};  ///< empty: no packet, or an invalid one
  bool is_closed = false;                          ///< the other end is closed
};

/// Receives the next packet without blocking. max_descriptors: a packet with more is invalid.
///
/// Throws: Error{comm} if this process has too many open files for a received descriptor.
[[nodiscard]] Packet receive_packet(const base::Descriptor& socket, std::size_t max_descriptors);

/// Accepts the next connection of a listening socket without blocking; empty if there is none.
/// make_room: called if this process has too many open files; closes an expendable one and returns
/// whether there was any.
///
/// Throws: Error{comm} if this process has too many open files.
[[nodiscard]] base::Descriptor accept_connection(
    const base::Descriptor& listener,
    const std::function<bool()>& make_room = [] { return false; });

}  // namespace dtrain::net
