// Which token comes next: a draw from the model's logits that depends on nothing but them, the seed
// and the token's number.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string_view>

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

/// Has a new generator of a byte model write `count` bytes after `prompt`, where an empty one
/// stands for a newline; `output` is given each as it comes.
///
/// Throws: as sample_token and Generator::step; what `output` throws.
void continue_bytes(Generator& generator, std::string_view prompt, const SamplingRule& rule,
                    std::int64_t count, const std::function<void(std::string_view)>& output);

}  // namespace dtrain::model
