// Encodes and decodes token file headers (docs/formats/tokens.md).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "dtrain/data/tokenizer/tokenizer.h"

namespace dtrain::data {

/// Vocabulary size of byte-level tokens.
inline constexpr std::int64_t kByteVocab = 256;

/// The origin of the tokens; in files of version 3. The memory layout equals the file's.
struct TokenDetails {
  std::int64_t num_bytes = 0;      ///< bytes of text; 0: unknown
  std::int64_t num_words = 0;      ///< words of text; 0: not counted
  std::int64_t num_documents = 0;  ///< 0: unknown
  std::int64_t model_bytes = 0;    ///< size of the tokenizer's model
  TokenizerKind tokenizer = TokenizerKind::unknown;
  std::uint64_t tail_checksum = 0;  ///< XXH3 of everything after the tokens
};

/// A decoded header of any version.
struct TokenHeader {
  std::int64_t bytes_per_token = 1;  ///< 1, 2 or 4
  std::int64_t vocab = kByteVocab;   ///< every token is below it
  std::int64_t num_tokens = 0;
  std::optional<std::uint64_t> checksum = {};  ///< XXH3 of the tokens; version 1 lacks it
  std::optional<TokenDetails> details = {};    ///< version 3 only, which also has a checksum
};

/// Header sizes of versions 1, 2 and 3. Each version's header begins with a version 1 header.
inline constexpr std::size_t kTokenHeaderBytes = 40;
inline constexpr std::size_t kTokenHeaderBytes2 = 48;
inline constexpr std::size_t kTokenHeaderBytes3 = 104;

/// Returns the padding bytes between the tokens and the document table, which begins at a multiple
/// of 8.
[[nodiscard]] std::size_t padding_after(std::size_t bytes_of_header_and_tokens);

/// Encodes a header: version 3 if it has details, 2 if it has a checksum, otherwise 1.
[[nodiscard]] std::vector<std::byte> encode_token_header(const TokenHeader& header);

/// Decodes the header of a file; also returns the header's size in bytes.
///
/// Throws: Error{data} naming the file if it is truncated, damaged or of another version.
[[nodiscard]] std::pair<TokenHeader, std::size_t> decode_token_header(
    std::span<const std::byte> file, const std::string& path);

/// Throws Error{data}: "token file 'PATH' FOUND; create it again with `dtrain data prepare`".
[[noreturn]] void refuse_token_file(const std::string& path, std::string_view found);

}  // namespace dtrain::data
