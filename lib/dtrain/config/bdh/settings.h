// The settings that a BDH has of its own.
#pragma once

#include <cstdint>

#include "dtrain/config/family.h"

namespace dtrain::config::bdh {

struct Settings {
  std::int64_t heads = 4;       // nh
  std::int64_t neurons = 512;   // N, per head
  std::int64_t told_heads = 0;  // of a file to import that does not say its heads; 0: it says
};

/// The chunk (positions) with which attention over sequences of `seq_len` positions takes fewer
/// operations than in full; 0: none. width: D.
[[nodiscard]] std::int64_t cheapest_chunk(std::int64_t width, std::int64_t seq_len);

/// The chunk (positions, a power of two) with which plain kernels take the least time on a device;
/// 0: full attention does. neurons: N.
[[nodiscard]] std::int64_t fastest_chunk(std::int64_t width, std::int64_t neurons,
                                         const AttentionWork& work);

}  // namespace dtrain::config::bdh
