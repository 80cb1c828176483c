// Finds the addresses at which this machine and others reach each other. Addresses are numeric
// texts, IPv4 or IPv6.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dtrain/base/host/slurm_step.h"

namespace dtrain::net {

/// Returns whether every machine means itself by this address.
[[nodiscard]] bool is_loopback(const std::string& address);

/// The 4 or 16 bytes of an address, as in packets; empty for what is none, and for one of IPv6 that
/// names an interface of this machine, too ("fe80::1%eth0").
[[nodiscard]] std::string address_bytes(const std::string& address);

/// The address of these bytes; empty if they are no address.
[[nodiscard]] std::string address_of_bytes(std::string_view bytes);

/// The addresses of this machine's interfaces that are up, without those of the loopback and of
/// single links.
[[nodiscard]] std::vector<std::string> interface_addresses();

/// A network interface that is up, and this machine's address there: of IPv4, else of IPv6.
struct Interface {
  std::string name;
  std::string address;
};

/// The interfaces of this machine that are up and have an address, the loopback's among them.
///
/// Throws: Error{comm} with the reason why the system does not list them.
[[nodiscard]] std::vector<Interface> interfaces();

/// The first of `names`, which commas separate, that this machine has.
///
/// Throws: Error{usage} that begins with `source`, what gave the names, and lists the interfaces;
///         Error{comm} as interfaces().
[[nodiscard]] Interface find_interface(std::string_view names, std::string_view source);

/// The address of this machine from which its packets to `address` leave; empty where there is no
/// way, and for what is no address.
[[nodiscard]] std::string source_address_to(const std::string& address);

/// Whether an address leads to another machine: false for this machine's own, and where there is no
/// way.
[[nodiscard]] bool is_of_other_machine(const std::string& address);

/// The address at which other machines of a job reach this one: `own`, unless that is empty or a
/// loopback's. Then the one from which it reaches another machine, which it finds among `all`, the
/// addresses of all processes of the job as they know them; `own` where there is no other machine.
[[nodiscard]] std::string reachable_address(const std::string& own,
                                            std::span<const std::string> all);

/// The host name or address by which the other nodes of a step reach its first node: MASTER_ADDR if
/// it is set, its name where that resolves, else the address that SLURM's `scontrol` knows. Never
/// one of the loopback on another node.
///
/// Throws: Error{usage} saying what was tried, and that MASTER_ADDR can be set.
[[nodiscard]] std::string address_of_first_node(const base::SlurmStep& step);

/// The address in what `scontrol --oneliner show node` prints; empty: there is none.
[[nodiscard]] std::string node_address_in(const std::string& printed);

}  // namespace dtrain::net
