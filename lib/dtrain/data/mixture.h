// What a run trains on: the samples of one file, or of several in proportion to weights.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "dtrain/data/sampler.h"
#include "dtrain/data/split.h"

namespace dtrain::data {

/// The epochs of each source that `samples` samples of the mixture are.
[[nodiscard]] std::vector<double> epochs_of(const Mixture& mixture, double samples);

/// Reads the samples of a Mixture in their order. Each source has its own epochs.
///
/// Threads: any number of readers.
class MixtureReader {
 public:
  MixtureReader(Mixture mixture, std::uint64_t seed);

  [[nodiscard]] std::int64_t seq_len() const { return mixture_.seq_len(); }
  /// The sample that is read after `consumed` were.
  ///
  /// Shapes: inputs and targets (seq_len).
  /// Throws: Error{data} as TokenFile::copy.
  void copy(std::int64_t consumed, std::span<std::int64_t> inputs,
            std::span<std::int64_t> targets) const;

 private:
  Mixture mixture_;
  SourceOrder sources_;
  std::vector<SampleOrder> orders_;  // of each source
};

}  // namespace dtrain::data
