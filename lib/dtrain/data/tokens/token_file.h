// Reads token files (docs/formats/tokens.md), or texts as byte tokens; converts per-token losses to
// bits per byte and perplexity per word.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "dtrain/base/io/input_file.h"
#include "dtrain/data/tokens/token_header.h"

namespace dtrain::data {

/// A vocabulary larger than that of any file: open() with it accepts every file.
inline constexpr std::int64_t kAnyVocab = std::int64_t{1} << 32;

/// A sequence of tokens, read on demand from a token file, or from any text with one token per
/// byte. The file is read, not memory-mapped, so a truncated file or failing disk raises an error
/// instead of a signal.
///
/// Throws:  open(): Error{data} naming the file and the problem: missing, a folder, empty,
///          truncated, another format or version, compressed, JSON lines or binary instead of text,
///          a vocabulary larger than `vocab`, or a token outside the file's vocabulary. open()
///          reads the whole file once if the token width permits such tokens.
///          copy(): Error{data} for a token outside the vocabulary (the file changed), or as
///          InputFile::read.
/// Threads: any number of readers.
class TokenFile {
 public:
  [[nodiscard]] static TokenFile open(const std::string& path, std::int64_t vocab);

  [[nodiscard]] std::int64_t size() const noexcept { return num_tokens_; }
  [[nodiscard]] std::int64_t bytes_per_token() const noexcept { return bytes_per_token_; }
  /// The vocabulary of the file's tokens; at most the `vocab` passed to open().
  [[nodiscard]] std::int64_t vocab() const noexcept { return own_vocab_; }
  /// The origin of the tokens, as far as the file records it.
  [[nodiscard]] const TokenDetails& details() const noexcept { return details_; }
  /// The tokenizer's model; empty for byte tokens and unknown tokenizers.
  [[nodiscard]] std::string_view tokenizer_model() const noexcept { return model_; }
  [[nodiscard]] bool knows_tokenizer() const noexcept {
    return details_.tokenizer != TokenizerKind::unknown;
  }
  /// The tokenizer's fingerprint: identity_of.
  [[nodiscard]] std::string tokenizer() const;
  [[nodiscard]] const std::string& path() const noexcept { return file_.path(); }

  /// Computes the 64-bit XXH3 of the stored tokens, without the header. A text and its token file
  /// have equal checksums. Reads the whole file.
  ///
  /// Throws: Error{data} naming the token file if its header records another checksum.
  [[nodiscard]] std::uint64_t checksum() const;

  /// Token `index`, 0 <= index < size().
  [[nodiscard]] std::int64_t operator[](std::int64_t index) const;
  /// Copies tokens [begin, begin + out.size()), all of which must exist.
  void copy(std::int64_t begin, std::span<std::int64_t> out) const;

 private:
  TokenFile(base::InputFile file, std::int64_t vocab);
  void read_header(std::string_view start);
  void read_tail(std::int64_t begin, std::int64_t padding);
  void check_tokens() const;

  base::InputFile file_;
  std::int64_t tokens_begin_ = 0;  // byte offset in the file
  std::string model_;
  std::int64_t vocab_;
  std::int64_t own_vocab_ = kByteVocab;
  TokenDetails details_;
  std::int64_t num_tokens_ = 0;
  std::int64_t bytes_per_token_ = 1;
  std::optional<std::uint64_t> stored_checksum_;
};

/// Converts a loss in nats per token to bits per byte and perplexity per word; empty if the file
/// does not record the counts.
struct TextUnits {
  std::optional<double> tokens_per_byte{};
  std::optional<double> tokens_per_word{};

  /// loss / ln 2 x tokens / bytes.
  [[nodiscard]] std::optional<double> bits_per_byte(double loss) const;
  /// exp(loss x tokens / words).
  [[nodiscard]] std::optional<double> perplexity_per_word(double loss) const;
};

/// Returns the ratios of a whole file.
[[nodiscard]] TextUnits units_of(const TokenFile& file);

/// Opens the tokenizer that a token file contains; null if it contains none.
///
/// Throws: as open_tokenizer; Error{data} naming the file if its tokenizer has a larger vocabulary
///         than the file.
[[nodiscard]] std::shared_ptr<const Tokenizer> tokenizer_of(const TokenFile& file);

}  // namespace dtrain::data
