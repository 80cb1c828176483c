// The order of training samples: shuffling within an epoch, mixing of several sources.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "dtrain/base/philox.h"

namespace dtrain::data {

/// A stateless shuffle: maps the number of samples consumed so far to the next sample's index. Each
/// epoch visits every sample once, in an order of its own. No permutation is stored, so a
/// checkpoint saves only the position.
///
/// A Feistel network keyed by (seed, epoch) permutes the smallest power of four that holds all
/// samples. Indices beyond the last sample pass through it again (cycle walking), which leaves a
/// bijection on the samples. With more than four samples not every order can occur, since the
/// network yields even permutations only; each sample is still equally likely at each position.
///
/// Source:  Black and Rogaway, Ciphers with Arbitrary Finite Domains (CT-RSA 2002). Differs: the
///          round function is Philox; secrecy is not a goal.
/// Threads: any number of callers.
class SampleOrder {
 public:
  /// num_samples >= 1.
  SampleOrder(std::int64_t num_samples, std::uint64_t seed);

  /// Returns the index of the sample that follows the first `consumed` ones.
  [[nodiscard]] std::int64_t operator()(std::int64_t consumed) const;
  /// Returns how many tokens later than in the first epoch samples begin in the epoch that
  /// `consumed` lies in: 0 in the first epoch, always below seq_len.
  [[nodiscard]] std::int64_t shift(std::int64_t consumed, std::int64_t seq_len) const;

 private:
  [[nodiscard]] std::uint64_t permute(std::uint64_t index, std::uint64_t epoch) const;

  std::uint64_t num_samples_;
  base::PhiloxKey key_;
  int half_bits_ = 1;
};

/// Interleaves several sources so that each gets its share of any run of consecutive samples. In
/// every block of 65,536 samples source s has share(s); within a block the order follows multiples
/// of the golden ratio, a low-discrepancy sequence.
///
/// Source:  Weyl sequences; a source's sample count is a floor sum, computed by Euclid's algorithm.
/// Threads: any number of callers.
class SourceOrder {
 public:
  static constexpr std::int64_t kBlock = 1 << 16;

  /// weights: 1 to kBlock of them, all above 0, with a finite sum; rounded to shares of kBlock, at
  /// least 1 each.
  explicit SourceOrder(std::span<const double> weights);

  struct Position {
    std::size_t source = 0;
    std::int64_t consumed = 0;  ///< samples taken from this source before
  };
  /// Returns the source of the sample that follows the first `consumed` ones of all sources.
  [[nodiscard]] Position operator()(std::int64_t consumed) const;
  /// Number of the source's samples per kBlock samples.
  [[nodiscard]] std::int64_t share(std::size_t source) const {
    return begins_[source + 1] - begins_[source];
  }

 private:
  std::vector<std::int64_t> begins_;  // of each source's range in [0, kBlock); last: kBlock
};

}  // namespace dtrain::data
