// Settings specific to BDH models, and the choice of their attention chunk.
#pragma once

#include <cstdint>

#include "dtrain/config/family.h"

namespace dtrain::config::bdh {

struct Settings {
  std::int64_t heads = 4;         // nh
  std::int64_t neurons = 512;     // N, per head
  std::int64_t import_heads = 0;  // if an imported file lacks the number of heads; 0: from the file
};

/// The chunk (positions) with which attention over `seq_len` positions takes fewer FLOPs than full
/// attention; 0 if none does. width: D.
[[nodiscard]] std::int64_t cheapest_chunk(std::int64_t width, std::int64_t seq_len);

/// The chunk (positions, a power of two) with which plain kernels are predicted to be fastest on a
/// device; 0 if full attention is. neurons: N.
[[nodiscard]] std::int64_t fastest_chunk(std::int64_t width, std::int64_t neurons,
                                         const AttentionWorkload& work);

}  // namespace dtrain::config::bdh
