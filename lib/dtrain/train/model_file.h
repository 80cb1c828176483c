// Reads model settings and tokenizers from model files and checkpoints; writes a run's final model.
#pragma once

#include <cstdint>
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

namespace dtrain::train {

/// The metadata key under which a model file stores the result of config::model_to_json().
using checkpoint::store::kModelKey;

/// Returns the names, without `prefix`, and shapes of the tensors whose names start with `prefix`.
///
/// path: the file's path, for messages. is_storage: TensorShapes::is_storage.
[[nodiscard]] model::TensorShapes tensor_shapes(
    const std::string& path, std::span<const checkpoint::format::TensorView> tensors,
    const std::string& prefix, bool is_storage);

/// As model::recognise; also checks the ranges of the settings.
[[nodiscard]] config::ModelConfig recognised_model(const model::TensorShapes& tensors,
                                                   const model::UserHints& hints);

/// Returns the settings of the file's model, whose tensors may have storage shapes or the
/// reference's shapes. Does not check all tensors against the settings.
///
/// Throws: Error{checkpoint} naming the file and the tensor that is missing or has a wrong shape,
///         or the flag that must supply a missing setting; Error{usage} if a flag contradicts the
///         file.
[[nodiscard]] config::ModelConfig model_of(const checkpoint::format::WeightFile& file,
                                           const model::UserHints& hints);

/// Returns the constants that dtrain's model files hold besides parameters.
[[nodiscard]] std::vector<checkpoint::NamedTensor> exported_buffers(const model::Model& model);

/// Returns the tensors that other programs' files may hold besides parameters.
[[nodiscard]] checkpoint::Constants constants_of(const model::Model& model);

/// As checkpoint::check_model_file, for a model with the settings of a command, of this family.
///
/// Throws: as checkpoint::check_model_file. If the file does not fit, and its tensors do not
///         determine the settings of its model, the message also names the config.json that is
///         missing beside it; it names nothing else if the file's model is of another family.
[[nodiscard]] std::string check_fit(const checkpoint::format::WeightFile& file,
                                    const model::Model& model, std::string_view family);

/// Returns the tokenizer of a model file with this vocabulary: the byte tokenizer, or the tokenizer
/// of the kind that the file names, in the file's folder or the run folder above it. For a file
/// that names no tokenizer, only a tokenizer.json in the file's folder counts.
///
/// Throws: Error{checkpoint} naming the file if its tokenizer is missing, different or unknown.
[[nodiscard]] std::shared_ptr<const data::Tokenizer> tokenizer_of_model(
    const checkpoint::format::WeightFile& file, std::int64_t vocab);

/// As tokenizer_of_model, for a checkpoint: the tokenizer comes from its run folder.
[[nodiscard]] std::shared_ptr<const data::Tokenizer> tokenizer_of_checkpoint(
    const std::string& checkpoint, std::int64_t vocab);

/// Returns the fingerprint (data::identity_of) of the tokenizer of a model file or of a
/// checkpoint's run; empty if unknown.
[[nodiscard]] std::string saved_tokenizer(const std::string& model_file_or_checkpoint);

/// A model and the data with which it is used.
struct ModelAndData {
  std::string flag;        ///< names the option that gave the model
  std::string weights;     ///< model file or checkpoint
  std::int64_t vocab = 0;  ///< of the model
  std::string data;        ///< names the data in messages
  std::string tokenizer;   ///< data::identity_of the data's tokenizer
};

/// Compares the tokenizers of model and data; equal shapes do not imply equal tokenizers. Returns the
/// message of an Error{data} with both identities if the model records another tokenizer than the
/// data's; a model of 256 tokens that has no tokenizer has byte tokens. Empty if they agree or one is
/// unknown. If the model records none, and another tokenizer lies in its folder, warns with both
/// identities: a tokenizer.json or, if the data is of SentencePiece, first a tokenizer.model.
///
/// Throws: Error{checkpoint} or Error{usage} naming a file that cannot be read.
[[nodiscard]] std::string check_tokenizer_of_data(const ModelAndData& used);

/// Returns a model file's metadata entry for a tokenizer with a model; empty for bytes and unknown
/// tokenizers.
[[nodiscard]] checkpoint::format::Metadata tokenizer_metadata(const std::string& identity);

struct TrainContext;

/// Writes RUN/final/model.safetensors: the engine's weights under the reference's names and shapes.
/// Gathers one unit of the parameters at a time. Rank 0 calls check_folder before it creates the
/// file and again before it renames it.
///
/// Collective: every rank of the world.
/// Throws:     Error{checkpoint} naming the file if it cannot be written; any exception of
///             check_folder.
void write_final_model(const TrainContext& context);

}  // namespace dtrain::train
