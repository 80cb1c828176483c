// Which rank computes which microbatch of a step.
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

  /// The global number of this rank's microbatch `index` (0 to grad_accum - 1). Whatever the deal,
  /// what is summed first, over `interleave` ranks or over a rank's own microbatches, is a run of
  /// consecutive numbers. Whether what follows keeps the order of the one sum over all of them, as
  /// it does for powers of two, says config::keeps_order_of_one_rank.
  [[nodiscard]] constexpr std::int64_t number_of(std::int64_t index) const {
    const std::int64_t block = rank / interleave * interleave * grad_accum;
    return block + index * interleave + rank % interleave;
  }
};

}  // namespace dtrain::data
