// Microbatches: their token ids, and their assignment to data-parallel ranks.
#pragma once

#include <cstdint>
#include <vector>

#include "dtrain/base/index.h"

namespace dtrain::data {

/// One microbatch of token ids.
///
/// Shapes: inputs and targets (num_sequences, length), row-major; targets[r][t] is the token that
///         follows inputs[r][t].
/// Units:  first_sample is the number of samples consumed before row 0; row r is sample
///         first_sample + r.
struct Batch {
  std::vector<std::int64_t> inputs{};
  std::vector<std::int64_t> targets{};
  std::int64_t first_sample = 0;
  std::int64_t num_sequences = 0;
  std::int64_t length = 0;
};

/// Index of a microbatch among those that one rank computes in a step.
using MicrobatchId = base::Index<struct MicrobatchTag>;

/// Assigns the microbatches of a global batch to the ranks of the data axis.
struct MicrobatchAssignment {
  std::int64_t rank = 0;        ///< this rank's index on the data axis
  std::int64_t num_ranks = 1;   ///< size of the data axis
  std::int64_t grad_accum = 1;  ///< microbatches per rank
  /// Size of the groups of ranks that sum their gradients after each microbatch. The ranks of a
  /// group compute consecutive microbatches. 1: each rank computes consecutive microbatches.
  std::int64_t interleave = 1;

  /// Number of microbatches in the global batch.
  [[nodiscard]] constexpr std::int64_t num_microbatches() const { return num_ranks * grad_accum; }

  /// Returns the index, within the global batch, of this rank's microbatch `id`. Microbatches that
  /// are summed first (over a group of `interleave` ranks, or on a rank) have consecutive indices.
  /// config::matches_single_rank_order returns whether the later sums preserve the single-rank
  /// order, as they do for powers of two.
  [[nodiscard]] constexpr std::int64_t number_of(MicrobatchId id) const {
    const std::int64_t block = rank / interleave * interleave * grad_accum;
    return block + id.value() * interleave + rank % interleave;
  }
};

}  // namespace dtrain::data
