// Bigram and trigram byte models: baselines whose loss a trained model must beat to show that it
// uses longer context.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "dtrain/data/split.h"

namespace dtrain::data {

/// A byte trigram model with interpolated Witten-Bell smoothing. With c(h) occurrences of a context
/// h and d(h) distinct bytes seen after it, P(x|h) = (c(hx) + d(h) * P(x|h')) / (c(h) + d(h)),
/// where h' is h without its oldest byte, and the empty context backs off to 1/256. An unseen
/// context gives P(x|h') unchanged.
///
/// Source: Witten and Bell, The Zero-Frequency Problem (IEEE Trans. Information Theory, 1991).
class NgramModel {
 public:
  /// Counts n-grams over all tokens in the samples' range; each token must be a byte.
  ///
  /// Throws: Error{data} naming the file if a token is not a byte.
  explicit NgramModel(const Samples& samples);

  /// Returns P(next | context); the context lists the oldest byte first and has at most two bytes.
  [[nodiscard]] double probability(std::span<const std::int64_t> context, std::int64_t next) const;

 private:
  struct Context {
    std::int64_t occurrences = 0;  // c(h)
    std::int64_t followers = 0;    // d(h)
  };
  /// Counts for contexts of one length; the index is the context read as a base-256 number.
  struct Order {
    std::vector<std::int64_t> counts;  // (contexts, 256): c(hx)
    std::vector<Context> contexts;
  };
  void count(const Samples& samples);

  std::array<Order, 3> orders_;  // by context length
};

/// Mean negative log likelihood in nats per token.
struct NgramLoss {
  double bigram = 0;
  double trigram = 0;
  std::int64_t num_targets = 0;
};

/// Counts n-grams in split.train and computes the loss on up to `num_sequences` validation samples,
/// the EvaluationSequences of a run. The n-gram models, like a trained model, see only the sample's
/// inputs, so the trigram model has one byte of context at the first target.
///
/// Throws: Error{data} if there is no validation sample or a token is not a byte.
[[nodiscard]] NgramLoss evaluate_ngrams(const Split& split, std::int64_t num_sequences);

}  // namespace dtrain::data
