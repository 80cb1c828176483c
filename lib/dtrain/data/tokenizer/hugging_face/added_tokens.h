// Finds the added tokens of a tokenizer in texts.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "dtrain/data/tokenizer/hugging_face/tokenizer_json.h"
#include "dtrain/data/tokenizer/hugging_face/unicode_library.h"

namespace dtrain::data {

/// The added tokens of a tokenizer, prepared for searches. Threads: any number of callers.
class AddedTokens {
 public:
  /// tokens: their contents are not empty and unique.
  explicit AddedTokens(std::vector<AddedToken> tokens);

  [[nodiscard]] bool is_empty() const { return tokens_.empty(); }
  [[nodiscard]] bool strips_left() const { return strips_left_; }
  [[nodiscard]] bool strips_right() const { return strips_right_; }
  /// Length of the longest content, bytes; 0 without tokens.
  [[nodiscard]] std::size_t longest() const { return longest_; }

  /// Returns whether a token's content begins or ends at `at`, or spans it.
  [[nodiscard]] bool touches(std::string_view text, std::size_t at) const;

 private:
  friend class AddedTokenFinder;
  static constexpr std::uint32_t kNone = ~std::uint32_t{0};

  [[nodiscard]] std::uint32_t child(std::uint32_t node, char byte) const;
  [[nodiscard]] const AddedToken* longest_at(std::string_view text, std::size_t at) const;

  std::vector<AddedToken> tokens_;
  // A trie: the child of a node by (node, byte), and the token that ends at a node.
  std::unordered_map<std::uint64_t, std::uint32_t> children_;
  std::vector<std::uint32_t> token_at_;
  std::array<bool, 256> begins_token_{};
  std::unique_ptr<Pattern> word_;  // null if no token is a single word
  std::size_t longest_ = 0;
  bool strips_left_ = false;
  bool strips_right_ = false;
};

/// Finds added tokens in texts. Threads: one caller.
class AddedTokenFinder {
 public:
  /// A token found in a text, with the white space that belongs to it.
  struct Found {
    ByteRange range;
    std::uint32_t id = 0;
  };

  /// The tokens must outlive the finder.
  explicit AddedTokenFinder(const AddedTokens& tokens);

  /// Lists the tokens of a text in order: at each position the longest one. The ranges overlap only
  /// if a token begins within white space that the token before it strips.
  ///
  /// text:   UTF-8.
  /// Source: tokenizers 0.23, added_vocabulary.rs, find_matches.
  [[nodiscard]] std::vector<Found> find(std::string_view text);

 private:
  [[nodiscard]] bool is_within_word(std::string_view text, ByteRange range);

  const AddedTokens& tokens_;
  std::unique_ptr<PatternScanner> word_;  // null if no token is a single word
};

}  // namespace dtrain::data
