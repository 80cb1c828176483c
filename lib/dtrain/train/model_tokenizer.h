// The tokenizer of a model file, which lies beside it and is named in its metadata, and the text that
// a model writes with it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "dtrain/checkpoint/format/safetensors.h"
#include "dtrain/data/tokenizer/tokenizer.h"
#include "dtrain/model/token_sampler.h"

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

/// Has a new generator write up to `count` tokens after those of a prompt; `output` is given the
/// bytes of each as it comes. It ends early where the model ends its document.
///
/// Throws: as model::sample_token and Generator::step; what `output` throws.
void continue_text(model::Generator& generator, const data::Tokenizer& tokenizer,
                   std::span<const std::int64_t> prompt, const model::SamplingRule& rule,
                   std::int64_t count, const std::function<void(std::string_view)>& output);

}  // namespace dtrain::train
