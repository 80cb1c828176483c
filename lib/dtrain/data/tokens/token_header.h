// The headers of token files (docs/formats/tokens.md).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "dtrain/data/tokenizer/tokenizer.h"

namespace dtrain::data {

/// A text read as bytes has these many different tokens.
inline constexpr std::int64_t kByteVocab = 256;

/// What version 3 adds: where the tokens come from. It lies in files as in memory.
struct TokenDetails {
  std::int64_t num_bytes = 0;      ///< of the text; 0: not known
  std::int64_t num_words = 0;      ///< of the text; 0: not counted
  std::int64_t num_documents = 0;  ///< 0: not known
  std::int64_t model_bytes = 0;    ///< of the tokenizer's model
  TokenizerKind tokenizer = TokenizerKind::unknown;
  std::uint64_t tail_checksum = 0;  ///< XXH3 of all that follows the tokens
};

struct TokenHeader {
  std::int64_t bytes_per_token = 1;  ///< 1, 2 or 4
  std::int64_t vocab = kByteVocab;   ///< every token is below it
  std::int64_t num_tokens = 0;
  std::optional<std::uint64_t> checksum = {};  ///< XXH3 of the tokens; none in files of version 1
  std::optional<TokenDetails> details = {};    ///< of version 3, which has a checksum, too
};

/// Bytes before the tokens, by the version of the format. The first is part of the others.
inline constexpr std::size_t kTokenHeaderBytes = 40;
inline constexpr std::size_t kTokenHeaderBytes2 = 48;
inline constexpr std::size_t kTokenHeaderBytes3 = 104;

/// Bytes between the tokens and the table of documents, which begins at a multiple of 8.
[[nodiscard]] std::size_t padding_after(std::size_t bytes_of_header_and_tokens);

/// The header as it stands in a file: of version 3 with details, else of 2 with a checksum.
[[nodiscard]] std::vector<std::byte> encode_token_header(const TokenHeader& header);

/// The header of a file, and how many bytes it takes.
///
/// Throws: Error{data} naming the file: truncated, another version, damaged.
[[nodiscard]] std::pair<TokenHeader, std::size_t> decode_token_header(
    std::span<const std::byte> file, const std::string& path);

/// Throws Error{data}: "token file 'PATH' FOUND; make it anew with `dtrain data prepare`".
[[noreturn]] void refuse_token_file(const std::string& path, std::string_view found);

}  // namespace dtrain::data
