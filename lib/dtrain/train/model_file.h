// What a model file says of its model and tokenizer; the file that a run ends with.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dtrain/checkpoint/format/weight_file.h"
#include "dtrain/checkpoint/model_file.h"
#include "dtrain/checkpoint/store/names.h"
#include "dtrain/checkpoint/tensor_file.h"
#include "dtrain/config/config.h"
#include "dtrain/data/tokenizer/tokenizer.h"
#include "dtrain/model/family.h"
#include "dtrain/model/model.h"
#include "dtrain/model/token_sampler.h"

namespace dtrain::train {

/// The key of a model file's metadata that holds describe().
using checkpoint::store::kModelKey;

/// The model's settings as a JSON object in one line.
[[nodiscard]] std::string describe(const config::ModelConfig& model);

/// The inverse of describe(), checked as settings are.
///
/// origin: where the text stands, for messages.
/// Throws: Error{checkpoint} naming origin and what is wrong.
[[nodiscard]] config::ModelConfig parse_description(std::string_view json,
                                                    const std::string& origin);

/// Names and shapes of the tensors that begin with `prefix`, without it.
///
/// path: of their file, for messages.
[[nodiscard]] model::TensorShapes tensor_shapes(
    const std::string& path, std::span<const checkpoint::format::TensorView> tensors,
    const std::string& prefix, bool is_storage);

/// As model::recognise; what it finds is within the ranges of the settings.
[[nodiscard]] config::ModelConfig recognised_model(const model::TensorShapes& tensors,
                                                   const model::UserHints& told);

/// Settings of the model in the file, in either shapes. Its tensors are not checked against them.
///
/// Throws: Error{checkpoint} naming the file and the tensor that is missing or has no such shape,
///         or the flag that says what the file does not; Error{usage} if a flag contradicts it.
[[nodiscard]] config::ModelConfig model_of(const checkpoint::format::WeightFile& file,
                                           const model::UserHints& told);

/// The constants that a model file holds besides its parameters.
[[nodiscard]] std::vector<checkpoint::NamedTensor> exported_buffers(const model::Model& model);

/// What files of others may hold besides the parameters.
[[nodiscard]] checkpoint::Constants constants_of(const model::Model& model);

/// The tokenizer of a model file of this vocabulary: bytes, or the tokenizer.model beside the file
/// or in the folder above it, which is the run's.
///
/// Throws: Error{checkpoint} naming the file whose tokenizer is not there, is another, or is not
///         known.
[[nodiscard]] std::shared_ptr<const data::Tokenizer> tokenizer_of_model(
    const checkpoint::format::WeightFile& file, std::int64_t vocab);

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

struct TrainContext;

/// Writes RUN/final/model.safetensors: the engine's weights under the reference's names and shapes.
/// One unit of the parameters is in memory in full at a time. Rank 0 checks the run folder before
/// the file is begun and again before it takes its name.
///
/// Collective: every rank of the world.
/// Throws:     Error{checkpoint} naming the file if it cannot be written; what check_folder throws.
void write_final_model(const TrainContext& context);

}  // namespace dtrain::train
