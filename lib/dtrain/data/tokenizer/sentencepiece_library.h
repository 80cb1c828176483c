// Interface of libdtrain-sentencepiece.so. SentencePiece and LibTorch export different versions of
// protobuf, so SentencePiece is loaded in a separate symbol scope.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace dtrain::data {

/// U+2581, which represents a space in pieces.
inline constexpr std::string_view kSpaceMark = "\xE2\x96\x81";

/// Maximum bytes that SentencePiece encodes in one call; a call allocates 200 times as many. A
/// unigram model encodes documents up to this size whole. A longer text without a cut position is
/// cut at the first character boundary after this many bytes.
inline constexpr std::size_t kMaxEncodeBytes = std::size_t{64} << 10;

/// A loaded SentencePiece model.
///
/// Threads: any number of callers.
class SentencePieceModel {
 public:
  enum class Kind { normal, unknown, control, byte, unused };

  virtual ~SentencePieceModel() = default;
  [[nodiscard]] virtual int size() const = 0;
  /// The piece as the model writes it: kSpaceMark for a space, "<0x0A>" for a byte.
  [[nodiscard]] virtual std::string piece(int id) const = 0;
  [[nodiscard]] virtual Kind kind(int id) const = 0;
  /// True for a unigram model, which sums float32 scores over the whole text: rounding may decide
  /// between two segmentations of a word.
  [[nodiscard]] virtual bool is_unigram() const = 0;
  /// The end-of-sentence piece; -1 if there is none.
  [[nodiscard]] virtual int end_id() const = 0;
  /// Returns false and sets `error` if SentencePiece fails.
  [[nodiscard]] virtual bool encode(std::string_view text, std::vector<int>& ids,
                                    std::string& error) const = 0;
};

/// Loads and trains models.
class SentencePieceLibrary {
 public:
  using TrainerFlags = std::unordered_map<std::string, std::string>;
  /// Stores the next sentence, or returns false at the end.
  using NextSentence = std::function<bool(std::string&)>;

  virtual ~SentencePieceLibrary() = default;
  /// Returns null and sets `error` if `model` is not a SentencePiece model.
  [[nodiscard]] virtual std::unique_ptr<SentencePieceModel> load(std::string_view model,
                                                                 std::string& error) = 0;
  /// Returns the model file's content; empty, with `error` set, if SentencePiece fails. flags:
  /// names and values of SentencePiece's trainer flags.
  [[nodiscard]] virtual std::string train(const TrainerFlags& flags, const NextSentence& next,
                                          std::string& error) = 0;
};

/// Returns the library, loaded on first use and never unloaded.
///
/// Throws: Error{usage} naming the file that cannot be loaded, and why.
[[nodiscard]] SentencePieceLibrary& sentencepiece_library();

}  // namespace dtrain::data

/// The library's entry point.
extern "C" dtrain::data::SentencePieceLibrary& dtrain_sentencepiece_library();
