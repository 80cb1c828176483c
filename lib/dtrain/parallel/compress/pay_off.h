// Measures at which bandwidth compressing gradients saves time.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "dtrain/parallel/compress/rank_sum.h"

namespace dtrain::parallel {

/// The bytes that a scheme saves in a step, and the time it takes.
struct PayOff {
  std::string scheme;           ///< as --compress takes it
  std::int64_t bytes_sent = 0;  ///< of a rank, in a ring
  std::int64_t bytes_whole = 0;
  double seconds = 0;  ///< to compress and decompress; 0: all parts are sent whole

  /// The bandwidth of a rank, in bits per second, below which the bytes saved take longer than the
  /// work; 0: nothing is saved.
  [[nodiscard]] double pays_below() const;
};

/// Measures the scheme of the setup first, then others that are usual and save bytes, on this rank's
/// CPU or device: as much of the largest part as 2^20 elements is compressed and decompressed a few
/// times.
///
/// num_ranks: that hold the same gradients. Takes some milliseconds for each scheme.
[[nodiscard]] std::vector<PayOff> measure_pay_offs(const RankSumSetup& setup,
                                                   std::int64_t num_ranks, c10::Device device);

}  // namespace dtrain::parallel
