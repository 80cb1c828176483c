// Meeting places of the ranks: a socket pair for dtrain's, a free TCP port for other programs.
#pragma once

#include <string>

#include "dtrain/base/descriptor.h"
#include "launcher/port_claim.h"

namespace launcher {

/// A bound TCP socket that never listens. As it has SO_REUSEADDR, so may rank 0 bind and listen at
/// the same port, and dtrun's own hold keeps the system from giving it to anybody who asks for any.
struct ReservedPort {
  dtrain::base::Descriptor socket;
  PortClaim claim;  // tells other dtruns, who could bind the port as rank 0 can
  int port = 0;
};

/// A unix socket pair through which ranks hand rank 0 their connections: it has no address, so
/// nobody else can come to it.
struct Door {
  dtrain::base::Descriptor inside;   // rank 0's end
  dtrain::base::Descriptor outside;  // of all other ranks
};

/// Throws: Error{spawn} with the reason.
[[nodiscard]] Door make_door();

/// Binds `port` (0: a free one) of `address`.
///
/// Throws: Error{port} naming a port that is taken, and the dtrun that has it; Error{usage} naming
/// an address that is not this machine's.
[[nodiscard]] ReservedPort reserve_port(const std::string& address, int port);

}  // namespace launcher
