// Sockets of dtrun: rendezvous of nodes and ranks, and the port that it reserves for other
// programs.
#pragma once

#include <string>

#include "dtrain/base/io/descriptor.h"

namespace launcher {

/// Claims an address and port for this job, so that no other dtrun on this machine takes them.
/// Binding the port is not enough: because rank 0 shares it (SO_REUSEADDR), another job could bind
/// it too.
struct PortClaim {
  dtrain::base::Descriptor socket;  // holds the claim until it is closed; none: no claim
  std::string holder;               // describes another dtrun that has the port; empty: none
};

/// A bound TCP socket that never listens. With SO_REUSEADDR, rank 0 can bind the same port and
/// listen on it, while the system assigns the port to no program that asks for a free one.
struct ReservedPort {
  dtrain::base::Descriptor socket;
  PortClaim claim;  // keeps other dtruns off the port, which they could bind as well
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
  PortClaim claim;  // shows a second node 0 which dtrun has the port
};

/// Opens a non-blocking socket that listens at that address for other launchers. If this machine
/// resolves the name to a loopback address, as Debian does for a machine's own name, the socket
/// listens at all addresses, IPv4 and IPv6, because other nodes resolve the name differently.
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
