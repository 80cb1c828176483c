// Claims a port, so that a second dtrun of this machine is refused it.
#pragma once

#include <string>

#include "dtrain/base/descriptor.h"
#include "launcher/address.h"

namespace launcher {

struct PortClaim {
  dtrain::base::Descriptor socket;  // the port is marked as this job's until it is closed
  std::string holder;               // the dtrun that has the port, in words; empty: no other one
};

/// Marks an address and its port as this job's. Binding them does not: the port is shared with rank
/// 0 (SO_REUSEADDR), and so with a second job.
///
/// Returns: a claim without socket and holder where another user's process has taken the mark.
[[nodiscard]] PortClaim claim_port(const Address& address);

}  // namespace launcher
