// Network addresses at which the machines of a job reach each other. Addresses are numeric strings,
// IPv4 or IPv6.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dtrain/base/host/slurm_step.h"

namespace dtrain::net {

/// Returns whether this is a loopback address.
[[nodiscard]] bool is_loopback(const std::string& address);

/// The 4 or 16 bytes of an address in network order; empty for other text, and for an IPv6 address
/// with a zone ("fe80::1%eth0").
[[nodiscard]] std::string address_bytes(const std::string& address);

/// Inverse of address_bytes(); empty unless there are 4 or 16 bytes.
[[nodiscard]] std::string address_of_bytes(std::string_view bytes);

/// The addresses of this machine's interfaces that are up, without loopback and link-local ones.
[[nodiscard]] std::vector<std::string> interface_addresses();

/// A network interface that is up, and its IPv4 address or, without one, its IPv6 address.
struct Interface {
  std::string name;
  std::string address;
};

/// The interfaces of this machine that are up and have an address, including the loopback.
///
/// Throws: Error{comm} with the reason if the system does not list them.
[[nodiscard]] std::vector<Interface> interfaces();

/// The first of the comma-separated `names` that this machine has.
///
/// Throws: Error{usage} that begins with `source`, the setting, and lists the interfaces;
///         Error{comm} as interfaces().
[[nodiscard]] Interface find_interface(std::string_view names, std::string_view source);

/// The source address of this machine's packets to `address`; empty without a route, or if
/// `address` is invalid.
[[nodiscard]] std::string source_address_to(const std::string& address);

/// Returns whether an address belongs to another machine; false without a route.
[[nodiscard]] bool is_remote(const std::string& address);

/// The address at which other machines of a job reach this one: `own`, unless it is empty or a
/// loopback address. In that case, the source address of packets to another machine of `all`, the
/// addresses that the job's processes reported; `own` if there is no other machine.
[[nodiscard]] std::string reachable_address(const std::string& own,
                                            std::span<const std::string> all);

/// The host name or address of a SLURM step's first node: MASTER_ADDR if it is set, otherwise the
/// node's name if it resolves, otherwise the address that `scontrol` reports. On the other nodes,
/// never a loopback address.
///
/// Throws: Error{usage} listing what was tried, and advising to set MASTER_ADDR.
[[nodiscard]] std::string address_of_first_node(const base::SlurmStep& step);

/// Extracts the address from the output of `scontrol --oneliner show node`; empty if it has none.
[[nodiscard]] std::string node_address_in(const std::string& printed);

}  // namespace dtrain::net
