// Reads token files of other trainers: nanoGPT, llm.c, Megatron, NumPy, and headerless integers.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "dtrain/data/tokens/number_type.h"
#include "dtrain/data/tokens/token_writer.h"

namespace dtrain::data {

/// The format of a foreign token file.
struct BinaryFormat {
  std::string name{};  ///< "nanoGPT", "llm.c (GPT-2)", "NumPy (uint16)"
  std::int64_t header_bytes = 0;
  NumberType type{};
  std::int64_t vocab = 0;                   ///< the format's usual vocabulary; 0: unknown
  std::optional<std::int64_t> delimiter{};  ///< the token between documents
  bool delimiter_is_first = false;          ///< the delimiter begins a document; false: ends it
  bool has_index = false;                   ///< a MegatronIndex lists the documents
};

/// Properties of the tokens that the user specified.
struct BinaryHints {
  std::int64_t vocab = 0;            ///< 0: not given
  std::optional<NumberType> type{};  ///< token type in files without a header
};

/// Detects the format of a token file from its header or index; empty if it is not a token file. A
/// file without either has the type hints.type. Without a hint, a .bin file has 16-bit tokens if
/// its byte statistics confirm it (headerless.h).
///
/// Throws: Error{data} naming a file that is truncated, of another version, byte-swapped, of
///         uncertain number type, or with numbers that are no tokens; Error{usage} if hints.type is
///         given for text or for a file that records its type.
[[nodiscard]] std::optional<BinaryFormat> binary_format_of(const std::string& path,
                                                           const BinaryHints& hints);

/// Appends the tokens and document ends of a file to `writer`, whose vocabulary is `vocab`. Returns
/// the highest token, or -1 if there are none.
///
/// Throws: Error{data} naming file and position of a token outside the vocabulary.
std::int64_t convert_binary(const std::string& path, const BinaryFormat& format, std::int64_t vocab,
                            TokenWriter& writer, const std::function<void(std::int64_t)>& on_bytes);

}  // namespace dtrain::data
