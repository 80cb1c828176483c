// Which token comes next: a draw from the model's logits that depends on nothing but them, the seed
// and the token's number.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <span>

#include "dtrain/model/family.h"

namespace dtrain::model {

struct SamplingRule {
  double temperature = 1.0;  ///< 0: the likeliest token
  std::int64_t top_k = 0;    ///< tokens to choose among; 0: all
  std::uint64_t seed = 0;
};

/// Draws the token with number `index` of a text from softmax(logits / temperature), cut to the
/// top_k likeliest. Of equally likely tokens the lower one counts as likelier.
///
/// Shapes: logits (V), float32 or float64.
/// Throws: Error{numerics} if a logit is not finite.
[[nodiscard]] std::int64_t sample_token(const at::Tensor& logits, const SamplingRule& rule,
                                        std::int64_t index);

/// Has a new generator write up to `count` tokens after `prompt`, which has at least one;
/// `on_token` is given each as it comes, and ends the text by returning false.
///
/// Throws: as sample_token and Generator::step; what `on_token` throws.
void continue_tokens(Generator& generator, std::span<const std::int64_t> prompt,
                     const SamplingRule& rule, std::int64_t count,
                     const std::function<bool(std::int64_t)>& on_token);

}  // namespace dtrain::model
