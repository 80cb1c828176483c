// The port where node 0 waits for the other launchers.
#pragma once

#include <string>

#include "dtrain/base/descriptor.h"

namespace launcher {

/// A socket that listens at that address and does not block. Where this machine takes the name for
/// a loopback address, as Debian does with its own, it listens at all addresses, IPv4 and IPv6:
/// the other nodes know the name better.
///
/// Throws: Error{port} naming who listens at the port, or the dtrun that holds it for its ranks;
///         Error{usage} for an address that is not this machine's.
[[nodiscard]] dtrain::base::Descriptor listen_for_nodes(const std::string& host, int port);

/// The same at a free port of the loopback address, which is written to `port`.
[[nodiscard]] dtrain::base::Descriptor listen_on_loopback(int& port);

/// Returns whether a numeric address means this machine alone.
[[nodiscard]] bool is_loopback(const std::string& address);

}  // namespace launcher
