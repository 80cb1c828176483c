// Reads Hugging Face's tokenizer.json, as far as byte-level BPE needs it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace dtrain::data {

/// A byte pair model. Tokens are written in the alphabet of byte_alphabet.h.
struct BytePairModel {
  std::vector<std::pair<std::string, std::uint32_t>> vocab;  ///< tokens and their numbers, unique
  std::vector<std::pair<std::string, std::string>> merges;   ///< in order of their ranks, unique
  std::string unknown;          ///< the token of bytes without a token; may be empty
  bool fuses_unknown = false;   ///< consecutive unknown bytes are one token
  bool ignores_merges = false;  ///< a word that is a token is not split
};

/// A token that is found in a text before all others.
struct AddedToken {
  std::string content;
  std::uint32_t id = 0;
  bool is_single_word = false;  ///< not within a word
  bool strips_left = false;     ///< with the white space before it
  bool strips_right = false;    ///< with the white space after it
  bool is_normalized = false;   ///< found in the normalized text, in its normalized form
};

/// How a step of a pre-tokenizer splits a text.
struct SplitStep {
  enum class Kind { digits, pattern };
  enum class Behavior { removed, isolated, merged_with_previous, merged_with_next, contiguous };
  Kind kind = Kind::pattern;
  std::string pattern = {};  ///< in PCRE2's syntax
  Behavior behavior = Behavior::isolated;
  bool is_inverted = false;
};

struct TokenizerJson {
  BytePairModel model;
  std::vector<AddedToken> added_tokens;
  bool uses_nfc = false;
  std::vector<SplitStep> steps;
  /// The number of steps before the ByteLevel pre-tokenizer.
  std::size_t steps_before_bytes = 0;
  bool adds_prefix_space = false;  ///< before each piece that reaches the ByteLevel pre-tokenizer
};

/// Parses the content of the file. name: the file's name, for messages.
///
/// Throws: Error{data} naming the file and what is wrong, missing or not supported, with its type.
[[nodiscard]] TokenizerJson parse_tokenizer_json(std::string_view content, const std::string& name);

}  // namespace dtrain::data
