// The order in which samples are visited.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "dtrain/base/philox.h"

namespace dtrain::data {

/// Which sample of the text is read, as a function of the number of samples consumed before it:
/// each epoch visits every sample once, in an order of its own. Nothing is stored, so that a
/// position is all there is to save.
///
/// A Feistel network keyed by (seed, epoch) permutes the smallest square power of two that holds
/// all samples; indices beyond the last sample are sent through it again (cycle walking), which
/// leaves a bijection of the samples. Beyond four samples not every order can occur (the network
/// gives even permutations only); each sample still comes equally often at each place.
///
/// Source:  Black and Rogaway, Ciphers with Arbitrary Finite Domains (CT-RSA 2002). Differs: the
///          round function is Philox, and nothing is meant to be secret.
/// Threads: any number of callers.
class SampleOrder {
 public:
  /// num_samples >= 1.
  SampleOrder(std::int64_t num_samples, std::uint64_t seed);

  /// The sample read after `consumed` samples were.
  [[nodiscard]] std::int64_t operator()(std::int64_t consumed) const;
  /// How many tokens later than in the first epoch the samples of the epoch of `consumed` begin:
  /// 0 in the first epoch, always below seq_len.
  [[nodiscard]] std::int64_t shift(std::int64_t consumed, std::int64_t seq_len) const;

 private:
  [[nodiscard]] std::uint64_t permute(std::uint64_t index, std::uint64_t epoch) const;

  std::uint64_t num_samples_;
  base::PhiloxKey key_;
  int half_bits_ = 1;
};

/// Which of several sources a sample comes from, so that each gets its share of any stretch of
/// samples. Samples are counted in blocks of 65,536, of which source s has share(s); within a block
/// they follow the multiples of the golden section, the most even order that there is.
///
/// Source:  Weyl sequences; the rank is a sum of floors, computed as by Euclid's algorithm.
/// Threads: any number of callers.
class SourceOrder {
 public:
  static constexpr std::int64_t kBlock = 1 << 16;

  /// weights: 1 to kBlock, all above 0, with a finite sum. Rounded to shares of kBlock, at least 1
  /// each.
  explicit SourceOrder(std::span<const double> weights);

  struct Place {
    std::size_t source = 0;
    std::int64_t consumed = 0;  ///< samples of this source before this one
  };
  /// The source of the sample read after `consumed` samples of all sources were.
  [[nodiscard]] Place operator()(std::int64_t consumed) const;
  /// Of kBlock samples.
  [[nodiscard]] std::int64_t share(std::size_t source) const {
    return begins_[source + 1] - begins_[source];
  }

 private:
  std::vector<std::int64_t> begins_;  // of the sources' shares in [0, kBlock), and kBlock
};

}  // namespace dtrain::data
