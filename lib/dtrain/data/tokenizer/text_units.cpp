#include "dtrain/data/tokenizer/text_units.h"

#include <cmath>
#include <numbers>
#include <string>

#include "dtrain/base/error.h"
#include "dtrain/data/tokenizer/utf8.h"

namespace dtrain::data {
namespace {

std::optional<double> tokens_per(const TokenFile& file, std::int64_t count) {
  if (count <= 0) return std::nullopt;
  return static_cast<double>(file.size()) / static_cast<double>(count);
}

// A prompt's tokens must be among the model's.
std::shared_ptr<const Tokenizer> piece_tokenizer_of(const TokenFile& file) {
  auto tokenizer = open_tokenizer(std::string(file.tokenizer_model()), file.path());
  if (tokenizer->vocab() > file.vocab()) {
    refuse_token_file(file.path(),
                      fmt::format("has a vocabulary of {}, and its tokenizer one of {}",
                                  file.vocab(), tokenizer->vocab()));
  }
  return tokenizer;
}

}  // namespace

std::optional<double> TextUnits::bits_per_byte(double loss) const {
  if (!tokens_per_byte) return std::nullopt;
  return loss / std::numbers::ln2 * *tokens_per_byte;
}

std::optional<double> TextUnits::perplexity_per_word(double loss) const {
  if (!tokens_per_word) return std::nullopt;
  return std::exp(loss * *tokens_per_word);
}

TextUnits units_of(const TokenFile& file) {
  return {.tokens_per_byte = tokens_per(file, file.details().num_bytes),
          .tokens_per_word = tokens_per(file, file.details().num_words)};
}

std::shared_ptr<const Tokenizer> tokenizer_of(const TokenFile& file) {
  switch (file.details().tokenizer) {
    case TokenizerKind::bytes:
      return byte_tokenizer();
    case TokenizerKind::sentencepiece:
      return piece_tokenizer_of(file);
    case TokenizerKind::unknown:
      break;
  }
  // Files of versions 1 and 2 do not say so where they hold bytes.
  return file.vocab() == kByteVocab ? byte_tokenizer() : nullptr;
}

std::vector<std::int64_t> prompt_tokens(const Tokenizer& tokenizer, std::string_view text,
                                        std::string_view name) {
  if (tokenizer.kind() != TokenizerKind::bytes && invalid_utf8_at(text)) {
    base::fail(base::ErrorKind::data, "{} is not UTF-8, which the model's tokenizer needs: byte {}",
               name, *invalid_utf8_at(text));
  }
  std::vector<std::uint32_t> tokens;
  if (text.empty() && tokenizer.end_of_document()) {
    tokens.push_back(*tokenizer.end_of_document());
  } else {
    tokenizer.make_encoder()->encode(text.empty() ? "\n" : text, true, tokens);
  }
  if (tokens.empty()) tokens.push_back(0);  // a text that the tokenizer normalises away
  return {tokens.begin(), tokens.end()};
}

}  // namespace dtrain::data
