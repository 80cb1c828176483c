// Packets in which processes hand each other descriptors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "dtrain/base/clock.h"
#include "dtrain/base/descriptor.h"

namespace dtrain::net {

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
