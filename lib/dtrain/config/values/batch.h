// Derives the batch sizes that are not given, from global = microbatch * grad_accum * dp.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "dtrain/config/config.h"

namespace dtrain::config {

/// Defaults if no batch setting is given, in sequences. The global batch is then rounded up to a
/// multiple of dp * pp.
inline constexpr std::int64_t kDefaultGlobalBatch = 8;
inline constexpr std::int64_t kDefaultMicrobatch = 1;

/// Upper limit of an automatic microbatch: larger ones are hardly faster, but need proportionally
/// more memory.
inline constexpr std::int64_t kMaxAutomaticMicrobatch = 8;

/// True if only the global batch is given, so that the microbatch may be any of its divisors.
[[nodiscard]] bool is_microbatch_automatic(const BatchConfig& requested);

/// The divisors of `number` up to `max`, largest first.
[[nodiscard]] std::vector<std::int64_t> divisors_up_to(std::int64_t max, std::int64_t number);

/// Possible values of an automatic microbatch: the divisors of a rank's share of the global batch up
/// to `max`, largest first. With each, grad_accum is a multiple of the pipeline stages. config:
/// resolved.
[[nodiscard]] std::vector<std::int64_t> microbatch_candidates(const Config& config,
                                                              std::int64_t max);

/// Sets one of microbatch_candidates, and the grad_accum that keeps the global batch.
void set_microbatch(Config& config, std::int64_t microbatch);

/// Derives the missing sizes of global = microbatch * grad_accum * dp
/// (docs/guide/configuration.md). A pipeline gets at least one microbatch per stage. layout: resolved.
///
/// Throws: Error{usage} naming the settings whose product is not the global batch.
void resolve_batch(BatchConfig& batch, const LayoutConfig& layout);

/// As resolve_batch before --strategy auto has chosen the layout: sets only the global batch. A
/// microbatch that is not given stays 0 until then.
void resolve_auto_layout_batch(BatchConfig& batch, std::int64_t num_ranks);

/// One line that explains which batch size depends on the number of ranks, and how it changes with
/// that number; empty if none does. requested: before resolve(); config: after it.
[[nodiscard]] std::string batch_note(const BatchConfig& requested, const Config& config);

}  // namespace dtrain::config
