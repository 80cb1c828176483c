// Token files, and texts read as bytes (docs/formats/tokens.md); their losses in units of the text.
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

/// More than any token needs: a file's own vocabulary is accepted, whatever it is.
inline constexpr std::int64_t kAnyVocab = std::int64_t{1} << 32;

/// A sequence of tokens that are read when they are wanted: a token file, or any text, one token a
/// byte. The file stays open, and is not mapped: one that is shortened, or a disk that fails, is an
/// error of whoever reads.
///
/// Throws:  open(): Error{data} naming the file and what is wrong: missing, a folder, empty,
///          truncated, another format or version, compressed, JSON lines or binary where text is
///          expected, a vocabulary larger than `vocab`, a token outside of it. Where the width of a
///          token does not rule that out, open() reads the whole file once.
///          copy(): Error{data} for a token outside the vocabulary (the file changed), or as
///          InputFile::read.
/// Threads: any number of readers.
class TokenFile {
 public:
  [[nodiscard]] static TokenFile open(const std::string& path, std::int64_t vocab);

  [[nodiscard]] std::int64_t size() const noexcept { return num_tokens_; }
  [[nodiscard]] std::int64_t bytes_per_token() const noexcept { return bytes_per_token_; }
  /// The vocabulary of the tokens, which may be smaller than that of open().
  [[nodiscard]] std::int64_t vocab() const noexcept { return own_vocab_; }
  /// Where the tokens come from, as far as the file knows.
  [[nodiscard]] const TokenDetails& details() const noexcept { return details_; }
  /// The tokenizer's model; empty for bytes and unknown ones.
  [[nodiscard]] std::string_view tokenizer_model() const noexcept { return model_; }
  [[nodiscard]] bool knows_tokenizer() const noexcept {
    return details_.tokenizer != TokenizerKind::unknown;
  }
  /// identity_of its tokenizer.
  [[nodiscard]] std::string tokenizer() const;
  [[nodiscard]] const std::string& path() const noexcept { return file_.path(); }

  /// XXH3, 64 bits, of all tokens as they lie in the file, without its header: a text and the token
  /// file made of it have the same. Reads the whole file.
  ///
  /// Throws: Error{data} naming a token file whose header has another checksum.
  [[nodiscard]] std::uint64_t checksum() const;

  /// Token `index`, 0 <= index < size().
  [[nodiscard]] std::int64_t operator[](std::int64_t index) const;
  /// Tokens [begin, begin + out.size()), all of which must be there.
  void copy(std::int64_t begin, std::span<std::int64_t> out) const;

 private:
  TokenFile(base::InputFile file, std::int64_t vocab);
  void read_header(std::string_view start);
  void read_tail(std::int64_t begin, std::int64_t padding);
  void check_tokens() const;

  base::InputFile file_;
  std::int64_t tokens_begin_ = 0;  // in bytes of the file
  std::string model_;
  std::int64_t vocab_;
  std::int64_t own_vocab_ = kByteVocab;
  TokenDetails details_;
  std::int64_t num_tokens_ = 0;
  std::int64_t bytes_per_token_ = 1;
  std::optional<std::uint64_t> stored_checksum_;
};

/// How a loss in nats per token reads in units of the text, as far as its file knows them.
struct TextUnits {
  std::optional<double> tokens_per_byte{};
  std::optional<double> tokens_per_word{};

  /// loss / ln 2 x tokens / bytes.
  [[nodiscard]] std::optional<double> bits_per_byte(double loss) const;
  /// exp(loss x tokens / words).
  [[nodiscard]] std::optional<double> perplexity_per_word(double loss) const;
};

/// Those of all of a file.
[[nodiscard]] TextUnits units_of(const TokenFile& file);

/// The tokenizer of a file's tokens; null where the file does not have it.
///
/// Throws: as open_tokenizer; Error{data} naming a file whose tokenizer has more tokens than the
///         file's vocabulary.
[[nodiscard]] std::shared_ptr<const Tokenizer> tokenizer_of(const TokenFile& file);

}  // namespace dtrain::data
