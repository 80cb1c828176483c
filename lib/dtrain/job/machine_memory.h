// Checks that a machine has the memory that its ranks are predicted to need.
#pragma once

#include "dtrain/comm/process_group.h"
#include "dtrain/comm/world.h"
#include "dtrain/config/config.h"
#include "dtrain/parallel/memory.h"

namespace dtrain::job {

/// Compares the predicted memory of the ranks on a machine or in a container, added up, with the
/// memory available there (base/host/available_resources.h). Above 80% rank 0 warns; above 100% the
/// job fails. Reports only the machine or container with the highest utilisation. No-op with
/// --memory-limit on a CPU. Call before any rank allocates.
///
/// predicted:  this rank's memory; on a device its host memory is compared.
/// Collective: every rank of `world`, the group of all ranks.
/// Throws:     Error{usage}, equal on every rank, naming the machine's ranks, the available memory,
///             the largest category, and settings that are predicted to fit.
void check_machine_memory(const config::Config& config, comm::ProcessGroup& world,
                          const parallel::MemoryPlan& predicted);

/// Returns whether check_machine_memory() would pass without a warning; equal on all ranks.
[[nodiscard]] bool fits_machine_memory(const config::Config& config, comm::ProcessGroup& world,
                                       const parallel::MemoryPlan& predicted);

/// Returns whether the ranks on each device are together predicted to need at most 80% of the
/// device's free memory; equal on all ranks. True on a CPU, and for devices that do not report free
/// memory.
///
/// predicted:  this rank's memory.
/// Collective: every rank of `world`.
[[nodiscard]] bool fits_device_memory(const config::Config& config, comm::World& world,
                                      const parallel::MemoryPlan& predicted);

}  // namespace dtrain::job
