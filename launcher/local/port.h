// Sockets of dtrun: rendezvous of nodes and ranks, and the port that it reserves for other
// programs.
#pragma once

#include <string>

#include "dtrain/base/io/descriptor.h"

namespace launcher {

/// Marks an address and its port as this job's, so that a second dtrun of this machine is refused
/// them. Binding them does not: the port is shared with rank 0 (SO_REUSEADDR), and so with a second
/// job.
struct PortClaim {
  dtrain::base::Descriptor socket;  // marks until it is closed; none: another user's process does
  std::string holder;               // the dtrun that has the port, in words; empty: no other one
};

/// A bound TCP socket that never listens. As it has SO_REUSEADDR, so may rank 0 bind and listen at
/// the same port, and dtrun's own hold keeps the system from giving it to anybody who asks for any.
struct ReservedPort {
  dtrain::base::Descriptor socket;
  PortClaim claim;  // tells other dtruns, who could bind the port as rank 0 can
  int port = 0;
};

/// Binds `port` (0: a free one) of `address`.
///
/// Throws: Error{port} naming a port that is taken, and the dtrun that has it; Error{usage} naming
/// an address that is not this machine's.
[[nodiscard]] ReservedPort reserve_port(const std::string& address, int port);

/// A socket that listens for the rendezvous of launchers.
struct NodeListener {
  dtrain::base::Descriptor socket;
  PortClaim claim;  // tells a second node 0 which dtrun has the port
};

/// A socket that listens at that address and does not block, for other launchers. Where this
/// machine takes the name for a loopback address, as Debian does with its own, it listens at all
/// addresses, IPv4 and IPv6: the other nodes know the name better.
///
/// Throws: Error{port} for a port that is taken, naming a dtrun that has it; Error{usage} for an
///         address that is not this machine's.
[[nodiscard]] NodeListener listen_for_nodes(const std::string& host, int port);

/// The same at a free port of a numeric address.
///
/// Throws: Error{port} with the reason.
[[nodiscard]] dtrain::base::Descriptor listen_at_free_port(const std::string& address);

/// A unix socket pair through which ranks pass their connections to rank 0. It has no address, so
/// no other process can connect to it.
struct RendezvousSocket {
  dtrain::base::Descriptor rank0_end;  // rank 0's end
  dtrain::base::Descriptor other_end;  // shared by all other ranks
};

/// Throws: Error{spawn} with the reason.
[[nodiscard]] RendezvousSocket make_rendezvous_socket();

}  // namespace launcher
