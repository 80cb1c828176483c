// Reads the token files of other trainers: nanoGPT, llm.c, Megatron, NumPy, and numbers without a
// header.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "dtrain/data/tokens/number_type.h"
#include "dtrain/data/tokens/token_writer.h"

namespace dtrain::data {

/// What a file holds.
struct BinaryFormat {
  std::string name{};  ///< "nanoGPT", "llm.c (GPT-2)", "NumPy (uint16)"
  std::int64_t header_bytes = 0;
  NumberType type{};
  std::int64_t vocab = 0;  ///< of the tokenizer that it is usually made with; 0: not known
  std::optional<std::int64_t> delimiter{};  ///< the token between documents
  bool delimiter_is_first = false;          ///< of its document, else its last
  bool has_index = false;                   ///< a MegatronIndex, which knows the documents
};

/// What the user says of tokens.
struct BinaryHints {
  std::int64_t vocab = 0;            ///< 0: not said
  std::optional<NumberType> type{};  ///< of files without a header
};

/// The format of a token file; nothing for what is none. A header or an index is certain. Without
/// one, files are recognised by the end of their name (.bin) and read as 16-bit tokens if their
/// bytes leave no doubt (headerless.h), or as hints.type says.
///
/// Throws: Error{data} naming a file that is truncated, of another version, byte-swapped, of
///         numbers that are no tokens, or of numbers whose type is in doubt; Error{usage} if
///         hints.type is given for a file that says its own, or for a text.
[[nodiscard]] std::optional<BinaryFormat> binary_format_of(const std::string& path,
                                                           const BinaryHints& hints);

/// Appends the tokens and documents of a file. vocab: of the writer. Returns the highest token, -1
/// for a file without any.
///
/// Throws: Error{data} naming file and position of a token outside the vocabulary.
std::int64_t convert_binary(const std::string& path, const BinaryFormat& format, std::int64_t vocab,
                            TokenWriter& writer, const std::function<void(std::int64_t)>& on_bytes);

}  // namespace dtrain::data
