// Continues a text with a generator, until a stop text, the end of a document or a number of tokens.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "dtrain/data/tokenizer/tokenizer.h"
#include "dtrain/model/family.h"
#include "dtrain/model/token_sampler.h"

namespace dtrain::train {

/// Finds the first of several stop texts in a text that arrives in pieces. The text ends at the
/// first byte that completes a stop text, and excludes the stop text, the longest if several end
/// there. The result does not depend on the borders of the pieces.
class StopTexts {
 public:
  /// texts: not empty; must outlive this.
  explicit StopTexts(std::span<const std::string> texts) : texts_(texts) {}

  /// Appends a piece and returns the text that is certain to precede any stop text. After a stop
  /// text was found, returns nothing.
  [[nodiscard]] std::string add(std::string_view piece);
  [[nodiscard]] bool is_found() const { return is_found_; }
  /// Returns the text that add() has held back because a stop text may begin with it.
  [[nodiscard]] std::string_view held_back() const { return held_; }

 private:
  void add_byte(char byte);
  [[nodiscard]] std::size_t longest_start() const;

  std::span<const std::string> texts_;
  std::string held_;
  bool is_found_ = false;
};

/// How to continue a text.
struct Continuation {
  model::SamplingRule rule;
  std::int64_t max_tokens = 0;
  std::span<const std::string> stop = {};  ///< texts before which the continuation ends
  bool ignores_end = false;                ///< continue after an end-of-document token
};

/// The length of a continuation and why it ended.
struct ContinuedText {
  std::int64_t num_tokens = 0;
  bool is_stopped = false;  ///< by a stop text or an end-of-document token
};

/// Generates tokens after a prompt and passes their bytes to `output` as soon as they cannot be part
/// of a stop text. Text of a tokenizer.json is valid UTF-8: U+FFFD stands for other bytes, and an
/// incomplete character waits for the next token. generator: must be new.
///
/// Throws: as model::continue_tokens; any exception of `output`.
ContinuedText continue_text(model::Generator& generator, const data::Tokenizer& tokenizer,
                            std::span<const std::int64_t> prompt, const Continuation& how,
                            const std::function<void(std::string_view)>& output);

}  // namespace dtrain::train
