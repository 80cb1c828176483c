// What libdtrain-sentencepiece.so gives. SentencePiece and LibTorch each bring their own protobuf
// and export it, so that one process may link only one of them; the other is opened apart.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace dtrain::data {

/// How pieces write a space: U+2581.
inline constexpr std::string_view kSpaceMark = "\xE2\x96\x81";

/// The longest stretch that SentencePiece reads at once, for which it takes 200 times the memory.
/// A unigram model reads documents up to this size whole. A longer stretch without a place to cut
/// is cut at the first character behind so many bytes.
inline constexpr std::size_t kLongestPart = std::size_t{64} << 10;

/// A loaded SentencePiece model.
///
/// Threads: any.
class PieceModel {
 public:
  enum class Kind { normal, unknown, control, byte, unused };

  virtual ~PieceModel() = default;
  [[nodiscard]] virtual int size() const = 0;
  /// As the model writes it: kSpaceMark for a space, "<0x0A>" for a byte.
  [[nodiscard]] virtual std::string piece(int id) const = 0;
  [[nodiscard]] virtual Kind kind(int id) const = 0;
  /// True if tokens follow from sums of float32 over the whole text, whose rounding may decide
  /// between two readings of a word.
  [[nodiscard]] virtual bool is_unigram() const = 0;
  /// The piece that ends a sentence; -1: there is none.
  [[nodiscard]] virtual int end_id() const = 0;
  /// Returns false, and why, where SentencePiece refuses.
  [[nodiscard]] virtual bool encode(std::string_view text, std::vector<int>& ids,
                                    std::string& obstacle) const = 0;
};

class PieceLibrary {
 public:
  using Words = std::unordered_map<std::string, std::string>;
  /// Gives the next sentence, or returns false at the end.
  using NextSentence = std::function<bool(std::string&)>;

  virtual ~PieceLibrary() = default;
  /// Null, and why, for what is no model.
  [[nodiscard]] virtual std::unique_ptr<PieceModel> load(std::string_view model,
                                                         std::string& obstacle) = 0;
  /// The model's file; empty, and why, where SentencePiece refuses. words: its trainer's flags.
  [[nodiscard]] virtual std::string train(const Words& words, const NextSentence& next,
                                          std::string& obstacle) = 0;
};

/// The library, which is opened once and stays.
///
/// Throws: Error{usage} naming the file that cannot be loaded, and why.
[[nodiscard]] PieceLibrary& piece_library();

}  // namespace dtrain::data

/// Its entry.
extern "C" dtrain::data::PieceLibrary& dtrain_piece_library();
