// Has a model write text.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string_view>

#include "dtrain/data/tokenizer/tokenizer.h"
#include "dtrain/model/token_sampler.h"

namespace dtrain::train {

/// Has a new generator write up to `count` tokens after those of a prompt; `output` is given the
/// bytes of each as it comes. It ends early where the model ends its document.
///
/// Throws: as model::sample_token and Generator::step; what `output` throws.
void continue_text(model::Generator& generator, const data::Tokenizer& tokenizer,
                   std::span<const std::int64_t> prompt, const model::SamplingRule& rule,
                   std::int64_t count, const std::function<void(std::string_view)>& output);

}  // namespace dtrain::train
