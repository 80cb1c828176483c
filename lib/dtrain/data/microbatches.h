// Assigns the microbatches of a step to ranks.
#pragma once

#include <cstdint>

namespace dtrain::data {

/// How the microbatches of a global batch are dealt to the ranks of the data axis.
struct MicrobatchDeal {
  std::int64_t rank = 0;        ///< of the data axis
  std::int64_t grad_accum = 1;  ///< microbatches of each rank
  /// Ranks whose gradients are summed after each microbatch: neighbours compute neighbouring
  /// microbatches. 1: a rank computes consecutive ones.
  std::int64_t interleave = 1;

  /// The global number of this rank's microbatch `index` (0 to grad_accum - 1). In both cases the
  /// microbatches summed first, over `interleave` ranks or over a rank's own, have consecutive
  /// numbers. config::keeps_order_of_one_rank says whether the later sums keep the order of one
  /// rank, as they do for powers of two.
  [[nodiscard]] constexpr std::int64_t number_of(std::int64_t index) const {
    const std::int64_t block = rank / interleave * interleave * grad_accum;
    return block + index * interleave + rank % interleave;
  }
};

}  // namespace dtrain::data
