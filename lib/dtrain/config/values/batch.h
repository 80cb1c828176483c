// The batch: what follows from what is given of it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "dtrain/config/config.h"

namespace dtrain::config {

/// Sequences of a step, and of a rank's backward pass, where nothing is said about the batch: equal
/// on any number of ranks that divides them; on others the step grows to the next multiple.
inline constexpr std::int64_t kDefaultGlobalBatch = 8;
inline constexpr std::int64_t kDefaultMicrobatch = 1;

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

/// Sets what is missing of global = microbatch * grad_accum * dp (docs/guide/configuration.md). A pipeline
/// wants at least as many microbatches as it has stages. layout: resolved.
///
/// Throws: Error{usage} naming the settings that do not multiply to the global batch.
void resolve_batch(BatchConfig& batch, const LayoutConfig& layout);

/// The same where --strategy auto chooses the layout later: sets the global batch. A microbatch that
/// was not given stays 0: the chosen layout sets it.
void resolve_open_batch(BatchConfig& batch, std::int64_t num_ranks);

/// Describes what in the batch depends on the number of ranks, so that runs on different numbers
/// differ: one line, or nothing. asked: before resolve(); config: after it.
[[nodiscard]] std::string batch_note(const BatchConfig& asked, const Config& config);

}  // namespace dtrain::config
