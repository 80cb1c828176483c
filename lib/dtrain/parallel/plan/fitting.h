// Suggests settings with which an oversized job is predicted to fit into memory.
#pragma once

#include <cstdint>
#include <string>

#include "dtrain/config/config.h"
#include "dtrain/parallel/memory.h"

namespace dtrain::parallel {

/// The memory that is available to ranks.
struct AvailableMemory {
  std::int64_t bytes = 0;
  /// Ranks that share `bytes` on a machine or in a container; 0: `bytes` is per rank.
  std::int64_t ranks = 0;
};

/// Returns the largest category as text: "activations take the most, 2.0 GiB".
[[nodiscard]] std::string largest_part(const MemoryPlan& memory);

/// Lists single changes of settings with which the job is predicted to fit, and its memory then:
/// sharding over the same ranks, a smaller microbatch, activation checkpointing, fewer ranks per
/// machine. If no single change suffices, combines them, with more ranks if necessary. The text is
/// for messages: "--strategy fsdp (1.2 GiB per rank) or --microbatch 2 (1.5 GiB per rank)".
///
/// config: resolved; does not fit `available`.
[[nodiscard]] std::string fitting_settings(const config::Config& config,
                                           const AvailableMemory& available);

}  // namespace dtrain::parallel
