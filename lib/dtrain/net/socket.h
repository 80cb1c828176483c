// Sockets through which ranks find each other, and packets in which processes hand each other
// descriptors.
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

/// The TCP addresses that a name, or a numeric address, stands for; null where it stands for none,
/// with `reason`.
using Addresses = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>;
[[nodiscard]] Addresses resolve(const std::string& host, std::int64_t port, std::string& reason);

/// Tries once to connect to host:port, at all addresses of the name, a quarter of a second after
/// each other; the first that answers counts. Gives up 2 s after the last. None with `reason`
/// otherwise.
[[nodiscard]] base::Descriptor connect_to(const std::string& host, std::int64_t port,
                                          const base::Deadline& deadline, std::string& reason);

/// An address as a numeric text.
[[nodiscard]] std::string numeric_text(const sockaddr& address, std::size_t length);

/// The numeric address of this end of a connection.
[[nodiscard]] std::string own_address_of(const base::Descriptor& socket);

/// A socket listening at that address alone, never at all interfaces of this machine.
///
/// Throws: Error{comm} naming address and reason.
[[nodiscard]] int listen_at(const std::string& host, std::int64_t port);

/// Sockets that listen wherever other machines may look for `host`, all at one port (0: a free
/// one): at all addresses of that name that are this machine's. A name of the loopback alone, as
/// Debian makes of a machine's own, means something else elsewhere: then also at the addresses of
/// this machine's interfaces. A numeric address means itself.
///
/// Throws: as listen_at, also where one of them is taken.
[[nodiscard]] std::vector<base::Descriptor> listen_for_hosts(const std::string& host,
                                                             std::int64_t port);

/// The port at which a socket listens.
[[nodiscard]] std::int64_t port_of(const base::Descriptor& socket);

/// Two unix stream sockets, each the other's end.
///
/// Throws: Error{comm} with the reason.
[[nodiscard]] std::pair<base::Descriptor, base::Descriptor> connected_pair();

/// The most descriptors that the system carries in one packet.
inline constexpr std::size_t kMostDescriptors = 253;

/// Sends `rank` and copies of up to kMostDescriptors descriptors over a unix socket that keeps
/// packets apart; 0 or the errno.
[[nodiscard]] int send_packet(const base::Descriptor& socket, std::int64_t rank,
                              std::span<const int> descriptors, const base::Deadline& deadline);

/// A message received over such a socket.
struct Packet {
  std::int64_t rank = -1;                          ///< as the sender says
  std::vector<base::Descriptor> descriptors = {};  ///< none: nothing came, or nothing that counts
  bool is_closed = false;                          ///< nobody holds the other end
};

/// Takes the next packet; does not wait for one. most: descriptors that it may have.
///
/// Throws: Error{comm} if a descriptor came that this process has too many open files to take.
[[nodiscard]] Packet receive_packet(const base::Descriptor& socket, std::size_t most);

/// The next connection of a listening socket, or none; does not wait for one. make_room: closes one
/// that can be spared, and says whether there was any; called where this process has too many open
/// files.
///
/// Throws: Error{comm} if this process has too many open files to take it.
[[nodiscard]] base::Descriptor accept_connection(
    const base::Descriptor& listener,
    const std::function<bool()>& make_room = [] { return false; });

}  // namespace dtrain::net
