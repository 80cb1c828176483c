// Byte models that look back one or two bytes only; a trained model must beat them to show that it
// uses its context.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "dtrain/data/split.h"

namespace dtrain::data {

/// Counts of single bytes, pairs and triples, and the probabilities they give by interpolated
/// Witten-Bell smoothing: with c(h) occurrences of a context h and d(h) different bytes seen after
/// it, P(x|h) = (c(hx) + d(h) * P(x|h')) / (c(h) + d(h)), where h' is h without its oldest byte,
/// and the empty context falls back to 1/256. An unseen context gives P(x|h') unchanged.
///
/// Source: Witten and Bell, The Zero-Frequency Problem (IEEE Trans. Information Theory, 1991).
class NgramModel {
 public:
  /// Counts over all tokens of the samples' range, each of which must be a byte.
  ///
  /// Throws: Error{data} naming the file if a token is not a byte.
  explicit NgramModel(const Samples& samples);

  /// P(next | context), the context oldest byte first and at most two bytes long.
  [[nodiscard]] double probability(std::span<const std::int64_t> context, std::int64_t next) const;

 private:
  struct Context {
    std::int64_t occurrences = 0;  // c(h)
    std::int64_t followers = 0;    // d(h)
  };
  /// Everything about contexts of one length, indexed by the context as a number of base 256.
  struct Order {
    std::vector<std::int64_t> counts;  // (contexts, 256): c(hx)
    std::vector<Context> contexts;
  };
  void count(const Samples& samples);

  std::array<Order, 3> orders_;  // by the length of the context
};

/// Mean negative log likelihood in nats per token.
struct NgramLoss {
  double bigram = 0;
  double trigram = 0;
  std::int64_t num_targets = 0;
};

/// Trains on split.train and evaluates the targets of `num_sequences` validation samples (at most
/// all of them): those of EvaluationSequences, which a run scores too. Like a model, it sees only
/// the inputs of the sample, so that the trigram model has one byte of context at the first target.
///
/// Throws: Error{data} if there is no validation sample or a token is not a byte.
[[nodiscard]] NgramLoss evaluate_ngrams(const Split& split, std::int64_t num_sequences);

}  // namespace dtrain::data
