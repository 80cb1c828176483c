// Finds the tokenizer of a model file, which lies beside it and is named in its metadata.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "dtrain/checkpoint/format/safetensors.h"
#include "dtrain/data/tokenizer/tokenizer.h"

namespace dtrain::train {

/// The tokenizer of a model file of this vocabulary: bytes, or the tokenizer.model beside the file
/// or in the folder above it, which is the run's.
///
/// Throws: Error{checkpoint} naming the file whose tokenizer is not there, is another, or is not
///         known.
[[nodiscard]] std::shared_ptr<const data::Tokenizer> tokenizer_of_model(
    const checkpoint::format::SafetensorsFile& file, std::int64_t vocab);

/// Likewise for a checkpoint's model; its run folder contains tokenizer.model.
[[nodiscard]] std::shared_ptr<const data::Tokenizer> tokenizer_of_checkpoint(
    const std::string& checkpoint, std::int64_t vocab);

/// data::identity_of the tokenizer of a model file, or of a checkpoint's run; empty: not known.
[[nodiscard]] std::string saved_tokenizer(const std::string& model_file_or_checkpoint);

/// The entry of a model file's metadata, where its tokens have a tokenizer's model.
[[nodiscard]] checkpoint::format::Metadata tokenizer_metadata(const std::string& identity);

}  // namespace dtrain::train
