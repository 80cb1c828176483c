// Reads the prompts of `dtrain generate`.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "dtrain/config/config.h"
#include "dtrain/data/tokenizer/tokenizer.h"

namespace dtrain::commands {

/// A text to continue, its tokens, and how many tokens continue it.
struct Prompt {
  std::string text;
  std::vector<std::int64_t> tokens;  ///< at least one: an empty text has a token that precedes it
  std::int64_t max_tokens = 0;       ///< --max-tokens, or its default for this prompt
};

/// Returns the prompts of a file whose content is `text`: one per line of text, or the string
/// "prompt" of each line's object if `path` ends in .jsonl. Blank lines and a byte order mark are
/// skipped.
///
/// Throws: Error{data} naming the file and line if a line is not such an object, or the file if it
///         has no prompt.
[[nodiscard]] std::vector<std::string> prompts_in(const std::string& text, const std::string& path);

/// Returns the prompts of `generate`: those of --prompts, or a single one.
///
/// Throws: Error{data} if a file cannot be read or is malformed, or a prompt is not UTF-8 and the
///         tokenizer requires it; Error{usage} naming the prompt and max_positions if a prompt fills
///         them, or exceeds them with --max-tokens.
[[nodiscard]] std::vector<Prompt> read_prompts(const config::GenerateConfig& generate,
                                               const data::Tokenizer& tokenizer,
                                               std::int64_t max_positions);

}  // namespace dtrain::commands
