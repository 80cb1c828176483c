// Microbatches: the tokens of one forward pass, and which rank computes which.
#pragma once

#include <cstdint>
#include <vector>

#include "dtrain/base/index.h"

namespace dtrain::data {

/// One microbatch of token ids.
///
/// Shapes: inputs and targets (num_sequences, length), row-major; targets[r][t] is the token that
///         follows inputs[r][t].
/// Units:  first_sample counts samples consumed before row 0; row r is sample first_sample + r.
struct Batch {
  std::vector<std::int64_t> inputs{};
  std::vector<std::int64_t> targets{};
  std::int64_t first_sample = 0;
  std::int64_t num_sequences = 0;
  std::int64_t length = 0;
};

/// Index of a microbatch among those that one rank computes in a step.
using MicrobatchId = base::Index<struct MicrobatchTag>;

/// How the microbatches of a global batch are dealt to the ranks of the data axis.
struct MicrobatchAssignment {
  std::int64_t rank = 0;        ///< of the data axis
  std::int64_t num_ranks = 1;   ///< of the data axis
  std::int64_t grad_accum = 1;  ///< microbatches of each rank
  /// Ranks whose gradients are summed after each microbatch: neighbours compute neighbouring
  /// microbatches. 1: a rank computes consecutive ones.
  std::int64_t interleave = 1;

  /// Of the global batch.
  [[nodiscard]] constexpr std::int64_t num_microbatches() const { return num_ranks * grad_accum; }

  /// The global number of one of this rank's grad_accum microbatches. In both cases the
  /// microbatches summed first, over `interleave` ranks or over a rank's own, have consecutive
  /// numbers. config::keeps_order_of_one_rank says whether the later sums keep the order of one
  /// rank, as they do for powers of two.
  [[nodiscard]] constexpr std::int64_t number_of(MicrobatchId id) const {
    const std::int64_t block = rank / interleave * interleave * grad_accum;
    return block + id.value() * interleave + rank % interleave;
  }
};

}  // namespace dtrain::data
