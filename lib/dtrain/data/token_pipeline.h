// Texts to tokens on several threads, in the order of the texts.
#pragma once

#include <cstdint>

#include "dtrain/data/prepare.h"
#include "dtrain/data/token_writer.h"

namespace dtrain::data {

/// Called with the bytes of files read so far, after each block.
using OnBytes = std::function<void(std::int64_t)>;

/// Writes the tokens of all files. options: what prepare was asked; its inputs and output are not
/// read.
///
/// Throws: Error{data} as prepare.
void write_tokens_of(const std::vector<std::string>& files, const PrepareOptions& options,
                     const Tokenizer& tokenizer, TokenWriter& writer, const OnBytes& on_bytes);

/// How prepare reads files with these options.
[[nodiscard]] BlockOptions block_options(const std::vector<std::string>& files,
                                         const PrepareOptions& options, const Tokenizer& tokenizer);

/// Throws: Error{data} naming file and place of the first byte that is no UTF-8.
void check_utf8(const Block& block);

}  // namespace dtrain::data
