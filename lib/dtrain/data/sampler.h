// The order in which samples are visited.
#pragma once

#include <cstdint>

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

 private:
  [[nodiscard]] std::uint64_t permute(std::uint64_t index, std::uint64_t epoch) const;

  std::uint64_t num_samples_;
  base::PhiloxKey key_;
  int half_bits_ = 1;
};

}  // namespace dtrain::data
