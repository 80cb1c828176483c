// Finds settings with which a job that does not fit into memory is predicted to fit.
#pragma once

#include <cstdint>
#include <string>

#include "dtrain/config/config.h"
#include "dtrain/parallel/memory.h"

namespace dtrain::parallel {

/// The memory that ranks may take.
struct MemoryRoom {
  std::int64_t bytes = 0;
  /// That share it: of a machine or container. 0: each rank has so much of its own.
  std::int64_t ranks = 0;
};

/// "activations take the most, 2.0 GiB"
[[nodiscard]] std::string largest_part(const MemoryPlan& memory);

/// Names the changes of settings that are predicted to fit, each alone, with the bytes that they
/// take: sharding over the same ranks, a smaller microbatch, levels that run again, fewer ranks of
/// the machine. Where none does, all of them together, on more ranks if need be. For messages:
/// "--strategy fsdp (1.2 GiB a rank) or --microbatch 2 (1.5 GiB a rank)".
///
/// config: resolved; does not fit `room`.
[[nodiscard]] std::string fitting_settings(const config::Config& config, const MemoryRoom& room);

}  // namespace dtrain::parallel
