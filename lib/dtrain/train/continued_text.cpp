#include "dtrain/train/continued_text.h"

#include <algorithm>
#include <utility>

#include "dtrain/data/tokenizer/utf8.h"

namespace dtrain::train {

std::string StopTexts::add(std::string_view piece) {
  std::string certain;
  for (const char byte : piece) {
    if (is_found_) break;
    add_byte(byte);
    const std::size_t count = is_found_ ? held_.size() : held_.size() - longest_start();
    certain.append(held_, 0, count);
    held_.erase(0, count);
  }
  return certain;
}

// held_ contains every start of a stop text that reaches the end of the text, so a stop text that
// ends with this byte lies within it.
void StopTexts::add_byte(char byte) {
  held_.push_back(byte);
  std::size_t longest = 0;
  for (const std::string& text : texts_) {
    if (held_.ends_with(text)) longest = std::max(longest, text.size());
  }
  if (longest == 0) return;
  is_found_ = true;
  held_.resize(held_.size() - longest);
}

// The size of the longest end of held_ with which a stop text begins.
std::size_t StopTexts::longest_start() const {
  const std::string_view held = held_;
  for (std::size_t begin = 0; begin < held.size(); ++begin) {
    const std::string_view end = held.substr(begin);
    const auto begins = [&](const std::string& text) { return text.starts_with(end); };
    if (std::ranges::any_of(texts_, begins)) return end.size();
  }
  return 0;
}

ContinuedText continue_text(model::Generator& generator, const data::Tokenizer& tokenizer,
                            std::span<const std::int64_t> prompt, const Continuation& how,
                            const std::function<void(std::string_view)>& output) {
  const auto end = how.ignores_end ? std::nullopt : tokenizer.end_of_document();
  // Tokens of a tokenizer.json are bytes of UTF-8, which the package tokenizers decodes in this way.
  const bool is_utf8 = tokenizer.kind() == data::TokenizerKind::hugging_face;
  data::Utf8Repair repair;
  StopTexts stop(how.stop);
  ContinuedText result;
  model::continue_tokens(generator, prompt, how.rule, how.max_tokens, [&](std::int64_t token) {
    result.is_stopped = end && token == *end;
    if (result.is_stopped) return false;
    ++result.num_tokens;
    // A model may have more tokens than its tokenizer; those have no text.
    const std::string piece = token < tokenizer.vocab() ? tokenizer.text_of(token) : std::string();
    const std::string certain = stop.add(is_utf8 ? repair.add(piece) : piece);
    if (!certain.empty()) output(certain);
    result.is_stopped = stop.is_found();
    return !result.is_stopped;
  });
  if (const std::string rest = stop.add(repair.finish()); !rest.empty()) output(rest);
  result.is_stopped = result.is_stopped || stop.is_found();
  if (!stop.held_back().empty()) output(stop.held_back());
  return result;
}

}  // namespace dtrain::train
