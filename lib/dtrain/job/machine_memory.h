// Checks that the machine has the memory that its ranks are predicted to hold.
#pragma once

#include "dtrain/comm/process_group.h"
#include "dtrain/comm/world.h"
#include "dtrain/config/config.h"
#include "dtrain/parallel/memory.h"

namespace dtrain::job {

/// Compares what ranks that share a bound on memory, as those of a machine or of a container do,
/// will hold together with that bound (base/host/available_resources.h): a warning of rank 0 above 80 %,
/// a refusal above 100 %, of the bound of which the largest part is needed. With --memory-limit
/// that limit counts alone, and nothing is compared. To be called before any rank allocates.
///
/// predicted:  of this rank; on a device the host's part is compared.
/// Collective: every rank of `world`, the group of all ranks.
/// Throws:     Error{usage}, the same on every rank, naming the ranks of the machine, what is
///             available, the largest part, and settings that are predicted to fit.
void check_machine_memory(const config::Config& config, comm::ProcessGroup& world,
                          const parallel::MemoryPlan& predicted);

/// Returns whether that would pass without a warning; equal on all ranks. As check_machine_memory,
/// but it throws nothing of its own.
[[nodiscard]] bool fits_machine_memory(const config::Config& config, comm::ProcessGroup& world,
                                       const parallel::MemoryPlan& predicted);

/// Returns whether ranks that compute on one device are predicted to take together no more than
/// 80 % of what is free there; equal on all ranks. True on the CPU, and for devices that cannot
/// tell.
///
/// predicted:  of this rank.
/// Collective: every rank of `world`; its devices are those that ranks compute on.
[[nodiscard]] bool fits_device_memory(const config::Config& config, comm::World& world,
                                      const parallel::MemoryPlan& predicted);

}  // namespace dtrain::job
