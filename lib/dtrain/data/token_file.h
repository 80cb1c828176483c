// Token files, and texts read as bytes (docs/formats/tokens.md).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "dtrain/base/mapped_file.h"

namespace dtrain::data {

/// A text read as bytes has these many different tokens.
inline constexpr std::int64_t kByteVocab = 256;

/// The header of a token file.
struct TokenHeader {
  std::int64_t bytes_per_token = 1;  ///< 1, 2 or 4
  std::int64_t vocab = kByteVocab;   ///< every token is below it
  std::int64_t num_tokens = 0;
  std::optional<std::uint64_t> checksum = {};  ///< XXH3 of the tokens; none in files of version 1
};

/// The header's size in version 1; version 2 adds the checksum of the tokens.
inline constexpr std::size_t kTokenHeaderBytes = 40;

/// The header as it stands in a file, its own checksum included: of version 2 with a checksum of
/// the tokens, else of version 1.
[[nodiscard]] std::vector<std::byte> encode_token_header(const TokenHeader& header);

/// A memory-mapped sequence of tokens: a token file, or any text, one token a byte.
///
/// Throws:  open(): Error{data} naming the file and what is wrong: missing, a folder, empty,
///          truncated, another format or version, binary where text is expected, a vocabulary
///          larger than `vocab`, a token outside of it. Where the width of a token does not rule
///          that out, open() reads the whole file once.
///          copy(): Error{data} for a token outside the vocabulary (the file changed).
/// Threads: any number of readers.
class TokenFile {
 public:
  [[nodiscard]] static TokenFile open(const std::string& path, std::int64_t vocab);

  [[nodiscard]] std::int64_t size() const noexcept { return num_tokens_; }
  [[nodiscard]] std::int64_t bytes_per_token() const noexcept { return bytes_per_token_; }
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
  TokenFile(base::MappedFile file, std::int64_t vocab);
  void read_header();
  void read_checksum();
  void check_tokens() const;

  base::MappedFile file_;
  std::span<const std::byte> tokens_;  // size() * bytes_per_token_
  std::int64_t vocab_;
  std::int64_t num_tokens_ = 0;
  std::int64_t bytes_per_token_ = 1;
  std::optional<std::uint64_t> stored_checksum_;
};

}  // namespace dtrain::data
