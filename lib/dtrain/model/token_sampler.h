// Samples the next token of a text.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <span>

#include "dtrain/model/family.h"

namespace dtrain::model {

/// Sampling parameters.
struct SamplingRule {
  double temperature = 1.0;  ///< 0: greedy
  std::int64_t top_k = 0;    ///< 0: all tokens
  double top_p = 1.0;        ///< 1: all tokens
  std::uint64_t seed = 0;
};

/// Samples tokens from softmax(logits / temperature), restricted to the top_k most likely tokens, and
/// of these to the most likely ones whose probabilities first sum to at least top_p. Ties are broken
/// towards lower token ids. Of these, in ascending order of their ids, selects the one at which the
/// cumulative probability exceeds a uniform value of the seed and index. Takes linear time: the
/// vocabulary is not sorted.
///
/// Threads: one caller.
class TokenSampler {
 public:
  explicit TokenSampler(const SamplingRule& rule) : rule_(rule) {}

  /// Samples token `index` of a text: a pure function of the rule, the logits and the index.
  ///
  /// Shapes: logits (V), float32 or float64, the same V in each call.
  /// Throws: Error{numerics} if a logit is not finite.
  [[nodiscard]] std::int64_t sample(const at::Tensor& logits, std::int64_t index);

 private:
  [[nodiscard]] std::size_t sample_position(const at::Tensor& logits, double highest,
                                            std::int64_t index);

  SamplingRule rule_;
  // Buffers, float64 on the CPU, whose allocation would take longer than sampling.
  at::Tensor wide_;     // (V)
  at::Tensor weights_;  // of the tokens that top_k keeps
};

/// Feeds `prompt` (at least one token) to a new generator, then generates up to `count` tokens and
/// passes each to `on_token`, which stops generation by returning false.
///
/// Throws: as TokenSampler::sample, Generator::read_prompt and Generator::step; any exception of `on_token`.
void continue_tokens(Generator& generator, std::span<const std::int64_t> prompt,
                     const SamplingRule& rule, std::int64_t count,
                     const std::function<bool(std::int64_t)>& on_token);

}  // namespace dtrain::model
