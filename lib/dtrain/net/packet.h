// Packets in which processes hand each other descriptors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "dtrain/base/deadline.h"
#include "dtrain/base/descriptor.h"

namespace dtrain::net {

/// Sends `rank` and a copy of `descriptor` over a unix socket that keeps packets apart; 0 or the
/// errno.
[[nodiscard]] int send_packet(const base::Descriptor& socket, std::int64_t rank,
                              const base::Descriptor& descriptor, const base::Deadline& deadline);

/// The most descriptors that the system carries in one packet.
inline constexpr std::size_t kMostDescriptors = 253;

/// The same with several descriptors, at most kMostDescriptors of them.
[[nodiscard]] int send_packet(const base::Descriptor& socket, std::int64_t rank,
                              std::span<const int> descriptors, const base::Deadline& deadline);

/// A message received over such a socket.
struct Packet {
  std::int64_t rank = -1;       ///< as the sender says
  base::Descriptor descriptor;  ///< none: nothing came, or a packet that means nothing
  bool is_closed = false;       ///< nobody holds the other end
};

/// Takes the next packet; does not wait for one.
///
/// Throws: Error{comm} if a descriptor came that this process has too many open files to take.
[[nodiscard]] Packet receive_packet(const base::Descriptor& socket);

/// A packet with several descriptors.
struct Parcel {
  std::int64_t rank = -1;                          ///< as the sender says
  std::vector<base::Descriptor> descriptors = {};  ///< none: as with a Packet
  bool is_closed = false;
};

/// The same as receive_packet for a packet with up to kMostDescriptors descriptors.
[[nodiscard]] Parcel receive_parcel(const base::Descriptor& socket);

/// The next connection of a listening socket, or none; does not wait for one. make_room: closes one
/// that can be spared, and says whether there was any; called where this process has too many open
/// files.
///
/// Throws: Error{comm} if this process has too many open files to take it.
[[nodiscard]] base::Descriptor accept_connection(
    const base::Descriptor& listener,
    const std::function<bool()>& make_room = [] { return false; });

}  // namespace dtrain::net
