// The port where the ranks meet.
#pragma once

#include <string>

#include "launcher/descriptor.h"

namespace launcher {

/// A bound TCP socket that does not listen: rank 0 listens on it, or, as it has SO_REUSEADDR, on a
/// socket of its own with the same port.
struct ReservedPort {
  Descriptor socket;
  int port = 0;
};

/// Binds `port` (0: a free one) of `address`.
///
/// Throws: Error{port} naming a port that is taken; Error{usage} naming an address that is not this
/// machine's.
[[nodiscard]] ReservedPort reserve_port(const std::string& address, int port);

}  // namespace launcher
