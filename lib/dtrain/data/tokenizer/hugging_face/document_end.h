// A tokenizer.json does not say which token ends a document. Where dtrain keeps one, a last line
// does: {"eos_token":"<|endoftext|>"}.
#pragma once

#include <string>
#include <string_view>

namespace dtrain::data {

/// A kept tokenizer.json and the token that ends documents.
struct DocumentEnd {
  std::string_view content;  ///< tokenizer.json, unchanged
  std::string token;         ///< the token's text; empty if there is none
};

/// Splits what with_document_end() returned.
[[nodiscard]] DocumentEnd split_document_end(std::string_view model);

/// Returns `model`, with or without such a line, with the line for `token`; without the line for an
/// empty token.
[[nodiscard]] std::string with_document_end(std::string_view model, std::string_view token);

}  // namespace dtrain::data
