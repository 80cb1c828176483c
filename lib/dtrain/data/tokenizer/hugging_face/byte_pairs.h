// Byte pair encoding of words.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "dtrain/data/tokenizer/hugging_face/tokenizer_json.h"

namespace dtrain::data {

/// Allows lookup by string_view without a copy.
struct TextHash {
  using is_transparent = void;
  std::size_t operator()(std::string_view text) const {
    return std::hash<std::string_view>()(text);
  }
};
template <typename Value>
using TextMap = std::unordered_map<std::string, Value, TextHash, std::equal_to<>>;

/// Working memory of BytePairs::encode.
struct BytePairBuffers {
  struct Symbol {
    std::uint32_t token;
    std::uint32_t previous;
    std::uint32_t next;
    bool is_merged;  ///< into the symbol before it
  };
  /// A possible merge of the symbol at `position` with its successor.
  struct Candidate {
    std::uint64_t rank_and_position;
    std::uint32_t merged;
  };
  std::vector<Symbol> symbols;
  std::vector<Candidate> heap;
};

/// Splits words into tokens. Threads: any number of callers, with their own buffers.
class BytePairs {
 public:
  /// The model's merges name tokens of its vocabulary.
  explicit BytePairs(const BytePairModel& model);

  /// Appends the tokens of a word. A byte without a token becomes the unknown token or, if there is
  /// none, is dropped.
  ///
  /// Source: tokenizers 0.23, models/bpe/word.rs. The order of merges is the same in every case,
  ///         also if two pairs merge to one token. Takes n log n steps for n bytes.
  void encode(std::string_view word, BytePairBuffers& buffers,
              std::vector<std::uint32_t>& tokens) const;

 private:
  struct Merge {
    std::uint64_t pair = kNoPair;
    std::uint32_t rank = 0;
    std::uint32_t merged = 0;
  };
  static constexpr std::uint64_t kNoPair = ~std::uint64_t{0};
  static constexpr std::uint32_t kNone = ~std::uint32_t{0};

  [[nodiscard]] const Merge* find(std::uint32_t left, std::uint32_t right) const;
  void add(const Merge& merge);
  void split(std::string_view word, std::vector<BytePairBuffers::Symbol>& symbols) const;
  void consider(std::uint32_t position, BytePairBuffers& buffers) const;

  std::array<std::uint32_t, 256> token_of_byte_{};  // kNone: no token
  std::uint32_t unknown_ = kNone;
  bool fuses_unknown_ = false;
  std::vector<Merge> merges_;     // a hash table with linear probing
  TextMap<std::uint32_t> words_;  // tokens by their bytes, if words are looked up before merging
};

}  // namespace dtrain::data
