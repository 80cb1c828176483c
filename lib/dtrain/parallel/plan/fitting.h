// Suggests settings with which an oversized job is predicted to fit into memory.
#pragma once

#include <cstdint>
#include <string>

#include "dtrain/config/config.h"
#include "dtrain/parallel/memory.h"

namespace dtrain::parallel {

/// Memory available to ranks.
struct AvailableMemory {
  std::int64_t bytes = 0;
  /// Ranks that share `bytes` on a machine or in a container; 0: `bytes` is per rank.
  std::int64_t ranks = 0;
};

/// "activations take the most, 2.0 GiB"
[[nodiscard]] std::string largest_part(const MemoryPlan& memory);

/// Lists changes that are predicted to fit on their own, with their memory: sharding over the same
/// ranks, a smaller microbatch, activation checkpointing, fewer ranks per machine. If none fits
/// alone, combines them, with more ranks if necessary. For messages:
/// "--strategy fsdp (1.2 GiB per rank) or --microbatch 2 (1.5 GiB per rank)".
///
/// config: resolved; does not fit `available`.
[[nodiscard]] std::string fitting_settings(const config::Config& config,
                                           const AvailableMemory& available);

}  // namespace dtrain::parallel
