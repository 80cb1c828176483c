// A microbatch that only has to divide the global batch.
#pragma once

#include <cstdint>
#include <vector>

#include "dtrain/config/config.h"

namespace dtrain::config {

/// Sequences of an automatic microbatch, at most: more are hardly faster, and take memory in
/// proportion.
inline constexpr std::int64_t kMostAutomaticMicrobatch = 8;

/// True where only the global batch is given, so that any microbatch that divides it will do.
[[nodiscard]] bool is_microbatch_open(const BatchConfig& asked);

/// The divisors of `number` up to `most`, the largest first.
[[nodiscard]] std::vector<std::int64_t> divisors_up_to(std::int64_t most, std::int64_t number);

/// The microbatches that `config`, whose own one is open, may have: the divisors of a rank's share
/// of the global batch up to `most`, the largest first. With each, accumulation is a multiple of the
/// stages of a pipeline. config: resolved.
[[nodiscard]] std::vector<std::int64_t> open_microbatches(const Config& config, std::int64_t most);

/// Sets one of open_microbatches, and the accumulation that makes the same global batch.
void set_microbatch(Config& config, std::int64_t microbatch);

}  // namespace dtrain::config
