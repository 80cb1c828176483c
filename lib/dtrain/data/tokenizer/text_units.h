// Converts losses and prompts between tokens and text.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "dtrain/data/token_file.h"
#include "dtrain/data/tokenizer/tokenizer.h"

namespace dtrain::data {

/// How a loss in nats per token reads in units of the text, as far as its file knows them.
struct TextUnits {
  std::optional<double> tokens_per_byte{};
  std::optional<double> tokens_per_word{};

  /// loss / ln 2 x tokens / bytes.
  [[nodiscard]] std::optional<double> bits_per_byte(double loss) const;
  /// exp(loss x tokens / words).
  [[nodiscard]] std::optional<double> perplexity_per_word(double loss) const;
};

/// Those of all of a file.
[[nodiscard]] TextUnits units_of(const TokenFile& file);

/// The tokenizer of a file's tokens; null where the file does not have it.
///
/// Throws: as open_tokenizer; Error{data} naming a file whose tokenizer has more tokens than the
///         file's vocabulary.
[[nodiscard]] std::shared_ptr<const Tokenizer> tokenizer_of(const TokenFile& file);

/// The tokens of a text that a model continues; of an empty one, what comes before a document.
///
/// Throws: Error{data} for a text that is not UTF-8 under a tokenizer that needs it; `name` is the
///         text's.
[[nodiscard]] std::vector<std::int64_t> prompt_tokens(const Tokenizer& tokenizer,
                                                      std::string_view text, std::string_view name);

}  // namespace dtrain::data
