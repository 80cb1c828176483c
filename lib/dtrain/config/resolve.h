// From what the user asked for to what runs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "dtrain/config/schema.h"

namespace dtrain::config {

/// How this process was started, as far as it decides settings.
struct Launch {
  std::int64_t world_size = 1;
  std::int64_t num_nodes = 1;             ///< 0: unknown
  std::int64_t local_world_size = 1;      ///< ranks that share this machine's cores
  std::int64_t threads_hint = 0;          ///< OMP_NUM_THREADS; 0: not set
  std::int64_t usable_cores = 1;          ///< of this machine, for all its ranks
  std::vector<std::string> devices = {};  ///< kinds that this build brings, beside the CPU
  std::int64_t num_gpus = 0;              ///< of this machine, with their driver
  std::string unused_gpus = {};           ///< why the machine's GPUs are not among them
};

/// float32, or float64 where all is float64: of what follows from no other dtype.
[[nodiscard]] Dtype wide_dtype(const MachineConfig& machine);

/// Gives every role the dtype that follows from machine.dtype, unless it was told one.
///
/// Throws: Error{usage} where float64 meets another dtype.
void resolve_dtypes(MachineConfig& machine);

/// Replaces every automatic value by what it stands for (batch, dp, threads, backend, device,
/// dtypes, shards, decay steps) and refuses settings that contradict each other or the launch.
/// Reads no file. Backend auto stays where the launch does not tell on how many nodes it runs:
/// comm::create_world then finds out.
///
/// Throws: Error{usage} naming the settings, their values and what to change.
[[nodiscard]] Config resolve(Command command, Config config, const Launch& launch);

/// Returns whether gradients are float16 at some point, so that small ones would be lost. machine:
/// of a resolved configuration.
[[nodiscard]] bool needs_loss_scaling(const MachineConfig& machine);

}  // namespace dtrain::config
