// Finds the address of a node of SLURM.
#pragma once

#include <string>

#include "dtrain/base/slurm_step.h"

namespace dtrain::net {

/// The host name or address by which the other nodes of a step reach its first node: MASTER_ADDR if
/// it is set, its name where that resolves, else the address that SLURM's `scontrol` knows. Never
/// one of the loopback on another node.
///
/// Throws: Error{usage} saying what was tried, and that MASTER_ADDR can be set.
[[nodiscard]] std::string address_of_first_node(const base::SlurmStep& step);

/// The address in what `scontrol --oneliner show node` prints; empty: there is none.
[[nodiscard]] std::string node_address_in(const std::string& printed);

}  // namespace dtrain::net
