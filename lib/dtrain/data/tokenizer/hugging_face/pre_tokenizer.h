// Splits texts into words, which byte pair encoding then splits into tokens.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "dtrain/data/tokenizer/hugging_face/tokenizer_json.h"
#include "dtrain/data/tokenizer/hugging_face/unicode_library.h"

namespace dtrain::data {

/// The steps of a pre-tokenizer, compiled. Threads: any number of callers.
class PreTokenizer {
 public:
  /// name: the file's name, for messages.
  ///
  /// Throws: Error{data} naming the file and a pattern that is invalid.
  PreTokenizer(const TokenizerJson& json, const std::string& name);

 private:
  friend class WordSplitter;
  struct Step {
    SplitStep split;
    std::unique_ptr<Pattern> pattern;  // null for digits
  };
  std::string name_;
  std::vector<Step> steps_;
  std::size_t steps_before_bytes_;
  bool adds_prefix_space_;
};

/// Applies a pre-tokenizer. Threads: one caller.
class WordSplitter {
 public:
  using OnWord = std::function<void(std::string_view)>;
  using Allows = std::function<bool(std::size_t)>;
  /// A part of a text: a match of a step's pattern, or what lies between matches.
  struct Part {
    ByteRange range;
    bool is_match = false;
  };

  /// The pre-tokenizer must outlive the splitter.
  explicit WordSplitter(const PreTokenizer& rules);

  /// Calls on_word with each word of a text, in order.
  ///
  /// begins_text: false if the text continues one that was cut at last_cut().
  /// Throws:      Error{data} if a pattern exceeds the limits on backtracking or memory.
  void split(std::string_view text, bool begins_text, const OnWord& on_word);

  /// Returns the last position that allows(position) where the text can be cut: whatever follows
  /// the text, the words of both parts, split with begins_text false for the second, are the words
  /// of the whole. Returns 0 if it finds none.
  ///
  /// Throws: as split.
  [[nodiscard]] std::size_t last_cut(std::string_view text, const Allows& allows);

 private:
  using OnPart = std::function<void(const Part&)>;

  void run(std::size_t step, std::string_view text, bool begins_text, const OnWord& on_word);
  void each_part(std::size_t step, std::string_view text, const OnPart& on_part);
  std::size_t each_match(std::size_t step, std::string_view text, bool may_continue,
                         const OnPart& on_part);
  [[nodiscard]] std::vector<std::size_t> boundaries(std::size_t step, std::string_view text,
                                                    bool may_continue);
  [[nodiscard]] bool ends_parts_at(std::size_t step, std::string_view text, std::size_t at,
                                   const std::vector<std::size_t>& found);
  [[nodiscard]] std::size_t last_cut_of(std::size_t step, std::string_view text,
                                        const Allows& allows);
  [[nodiscard]] bool is_cuttable(std::size_t step) const;

  const PreTokenizer& rules_;
  std::vector<std::unique_ptr<PatternScanner>> scanners_;  // null for digits
  std::string prefixed_;
};

}  // namespace dtrain::data
