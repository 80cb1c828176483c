// Reads the token files of nanoGPT and llm.c.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "dtrain/data/token_writer.h"

namespace dtrain::data {

/// What a file's beginning says.
struct BinaryFormat {
  std::string_view name;  ///< "nanoGPT", "llm.c (GPT-2)"
  std::int64_t header_bytes = 0;
  std::int64_t width = 2;           ///< bytes of a token
  std::int64_t vocab = 0;           ///< of the tokenizer that it is usually made with
  std::int64_t delimiter = 0;       ///< the token between documents
  bool delimiter_is_first = false;  ///< of its document, else its last
};

/// The format of a token file; nothing for what is none. Files without a header are recognised by
/// the end of their name (.bin) and by their tokens.
///
/// vocab: of the tokens, where it is known; 0: usual.
///
/// Throws: Error{data} naming a file of llm.c that is truncated, of another version or
///         byte-swapped, and one without a header that is byte-swapped or has wider numbers.
[[nodiscard]] std::optional<BinaryFormat> binary_format_of(const std::string& path,
                                                           std::int64_t vocab);

/// Appends the tokens and documents of a file. vocab: of the writer. Returns the highest token, -1
/// for a file without any.
///
/// Throws: Error{data} naming file and position of a token outside the vocabulary.
std::int64_t convert_binary(const std::string& path, const BinaryFormat& format, std::int64_t vocab,
                            TokenWriter& writer, const std::function<void(std::int64_t)>& on_bytes);

}  // namespace dtrain::data
