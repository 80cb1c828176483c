// The two things we do with sockets ourselves. Private to comm.
#pragma once

#include <cstdint>
#include <string>

#include "dtrain/comm/deadline.h"

namespace dtrain::comm {

/// Tries to reach host:port until the deadline and returns this side's numeric address on the way
/// there.
///
/// Throws: Error{timeout} naming host, port and the last reason.
[[nodiscard]] std::string reach(const std::string& host, std::int64_t port,
                                const Deadline& deadline);

/// A socket listening at that address alone, never at all interfaces of this machine.
///
/// Throws: Error{comm} naming address and reason.
[[nodiscard]] int listen_at(const std::string& host, std::int64_t port);

/// The port that a bound socket has.
[[nodiscard]] std::int64_t port_of(int descriptor);

}  // namespace dtrain::comm
