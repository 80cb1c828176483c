// The model that a file of weights belongs to: said in its metadata, else read off its tensors.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "dtrain/checkpoint/store/names.h"
#include "dtrain/checkpoint/tensor_file.h"
#include "dtrain/config/config.h"
#include "dtrain/model/family.h"
#include "dtrain/model/model.h"

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

/// Returns whether the file has the names and shapes of checkpoints (model.NAME, a row per neuron)
/// instead of the reference's.
[[nodiscard]] bool has_storage_shapes(const checkpoint::format::SafetensorsFile& file);

/// Names and shapes of the tensors that begin with `prefix`, without it.
[[nodiscard]] model::TensorShapes tensor_shapes(const checkpoint::format::SafetensorsFile& file,
                                                const std::string& prefix, bool is_storage);

/// As model::recognise; what it finds is within the ranges of the settings.
[[nodiscard]] config::ModelConfig recognised_model(const model::TensorShapes& tensors,
                                                   const model::UserHints& told);

/// Settings of the model in the file, in either shapes. Its tensors are not checked against them.
///
/// Throws: Error{checkpoint} naming the file and the tensor that is missing or has no such shape,
///         or the flag that says what the file does not; Error{usage} if a flag contradicts it.
[[nodiscard]] config::ModelConfig model_of(const checkpoint::format::SafetensorsFile& file,
                                           const model::UserHints& told);

/// The constants that a model file holds besides its parameters.
[[nodiscard]] std::vector<checkpoint::NamedTensor> exported_buffers(const model::Model& model);

}  // namespace dtrain::train
