// Where a text may be cut so that SentencePiece makes the same tokens of its parts.
#pragma once

#include <cstddef>
#include <string_view>

#include "dtrain/data/tokenizer/piece_library.h"

namespace dtrain::data {

/// A model in three readings of its own normalizer: as it is, for the beginning of a document;
/// without the space that it puts before a text, for what follows in the middle; with one, for
/// words whose spaces are taken away because the model joins them.
struct PieceModels {
  std::unique_ptr<PieceModel> own;
  std::unique_ptr<PieceModel> bare;
  std::unique_ptr<PieceModel> spaced;
};

/// The longest stretch that SentencePiece reads at once, for which it takes 200 times the memory.
/// Where there is no place to cut, the next character behind so many bytes is one.
inline constexpr std::size_t kLongestPart = std::size_t{64} << 10;

/// The places that no piece of a model can span: before spaces or at line ends, between visible
/// ASCII characters, letters and characters of other scripts. A model with pieces that hold a space
/// after another character has none. The constructor checks them: a sample text must give the same
/// tokens whole and in parts.
///
/// Threads: any.
class PieceCuts {
 public:
  explicit PieceCuts(const PieceModels& models);

  /// Whether `text` may be cut before `at`, 0 < at < text.size().
  [[nodiscard]] bool may_cut(std::string_view text, std::size_t at) const;
  /// Whether the model reads this byte as a space.
  [[nodiscard]] bool is_space(char first) const {
    return first == ' ' || (first == '\n' && newline_ == Newline::is_space);
  }
  /// Whether it reads several spaces as one.
  [[nodiscard]] bool joins_spaces() const { return joins_spaces_; }

 private:
  enum class Newline { no_cut, is_space, stands_alone };
  [[nodiscard]] bool confirms(const PieceModels& models) const;

  bool cuts_at_spaces_ = false;
  bool joins_spaces_ = false;
  Newline newline_ = Newline::no_cut;
};

/// Reads a part as its place demands.
///
/// Throws: Error{internal} where SentencePiece fails.
[[nodiscard]] std::vector<int> encode_part(const PieceModels& models, const PieceCuts& cuts,
                                           std::string_view part, bool begins_document);

}  // namespace dtrain::data
