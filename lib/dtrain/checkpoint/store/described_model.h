// Model settings that come with a model file.
#pragma once

#include <optional>

#include "dtrain/checkpoint/format/weight_file.h"
#include "dtrain/config/config.h"

namespace dtrain::checkpoint::store {

/// Returns the model settings in the file's metadata (kModelKey), or else those in a config.json of
/// Hugging Face beside it; nothing if neither describes the model.
///
/// Throws: Error{checkpoint} naming the file and what is wrong, as
///         config::hugging_face_model_in.
[[nodiscard]] std::optional<config::ModelConfig> described_model(const format::WeightFile& file);

}  // namespace dtrain::checkpoint::store
