// The order of training samples: shuffling within an epoch, mixing of several sources.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "dtrain/base/philox.h"

namespace dtrain::data {

/// A stateless shuffle: maps the number of samples consumed so far to the next sample's index. Each
/// epoch visits every sample once, in a different order. No permutation is stored, so a checkpoint
/// saves only the position.
///
/// A Feistel network keyed by (seed, epoch) permutes the indices below the smallest power of four
/// that is at least the number of samples. An index beyond the last sample passes through the
/// network again (cycle walking), so the result is a bijection on the samples. The network yields
/// even permutations only, so with more than four samples some orders cannot occur; each sample is
/// still equally likely at each position.
///
/// Source:  Black and Rogaway, Ciphers with Arbitrary Finite Domains (CT-RSA 2002). Differs: the
///          round function is Philox; secrecy is not a goal.
/// Threads: any number of callers.
class SampleOrder {
 public:
  /// num_samples >= 1.
  SampleOrder(std::int64_t num_samples, std::uint64_t seed);

  /// Returns the index of the next sample after `consumed` samples.
  [[nodiscard]] std::int64_t operator()(std::int64_t consumed) const;
  /// Returns the offset in tokens, below seq_len, by which samples are shifted in the epoch that
  /// contains position `consumed`; 0 in the first epoch.
  [[nodiscard]] std::int64_t shift(std::int64_t consumed, std::int64_t seq_len) const;

 private:
  [[nodiscard]] std::uint64_t permute(std::uint64_t index, std::uint64_t epoch) const;

  std::uint64_t num_samples_;
  base::PhiloxKey key_;
  int half_bits_ = 1;
};

/// Interleaves several sources so that any run of consecutive samples holds them in proportion to
/// their weights. Every block of 65,536 samples holds share(s) samples of source s; within a block
/// the order follows multiples of the golden ratio, a low-discrepancy sequence.
///
/// Source:  Weyl sequences. The samples taken from a source so far are counted by a floor sum,
///          which is computed as in Euclid's algorithm.
/// Threads: any number of callers.
class SourceOrder {
 public:
  static constexpr std::int64_t kBlock = 1 << 16;

  /// weights: 1 to kBlock values above 0 with a finite sum; rounded to integer shares of kBlock, at
  /// least 1 each.
  explicit SourceOrder(std::span<const double> weights);

  struct Position {
    std::size_t source = 0;
    std::int64_t consumed = 0;  ///< samples already taken from this source
  };
  /// Returns the source of the next sample after `consumed` samples of all sources together.
  [[nodiscard]] Position operator()(std::int64_t consumed) const;
  /// Number of the source's samples per kBlock samples.
  [[nodiscard]] std::int64_t share(std::size_t source) const {
    return begins_[source + 1] - begins_[source];
  }

 private:
  std::vector<std::int64_t> begins_;  // start of each source's range in [0, kBlock), then kBlock
};

}  // namespace dtrain::data
