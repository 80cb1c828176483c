// The socket at which node 0 listens: for the other launchers, then for the ranks.
#pragma once

#include <string>

#include "dtrain/base/descriptor.h"

namespace launcher {

/// A socket that listens at that address and does not block. Where this machine takes the name for
/// a loopback address, as Debian does with its own, it listens at all addresses, IPv4 and IPv6:
/// the other nodes know the name better.
///
/// Throws: Error{port} for a port that is taken, naming a dtrun that holds it for its ranks;
///         Error{usage} for an address that is not this machine's.
[[nodiscard]] dtrain::base::Descriptor listen_for_nodes(const std::string& host, int port);

/// A non-blocking socket that listens at a free port of that numeric address. While it is open,
/// nobody else can listen there.
///
/// Throws: Error{port} with the reason.
[[nodiscard]] dtrain::base::Descriptor listen_at_free_port(const std::string& address);

/// Returns whether a numeric address means this machine alone.
[[nodiscard]] bool is_loopback(const std::string& address);

}  // namespace launcher
