#include "dtrain/train/text_writer.h"

namespace dtrain::train {

void continue_text(model::Generator& generator, const data::Tokenizer& tokenizer,
                   std::span<const std::int64_t> prompt, const model::SamplingRule& rule,
                   std::int64_t count, const std::function<void(std::string_view)>& output) {
  const auto end = tokenizer.end_of_document();
  model::continue_tokens(generator, prompt, rule, count, [&](std::int64_t token) {
    if (end && token == *end) return false;
    // A model may have more tokens than its tokenizer; these stand for nothing.
    if (token < tokenizer.vocab()) output(tokenizer.text_of(token));
    return true;
  });
}

}  // namespace dtrain::train
