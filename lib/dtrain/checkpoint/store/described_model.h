// Reads the model settings that are stored with a model file or checkpoint.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "dtrain/checkpoint/format/weight_file.h"
#include "dtrain/checkpoint/store/reader.h"
#include "dtrain/config/config.h"

namespace dtrain::checkpoint::store {

/// Parses the model settings of a model file or checkpoint, in the JSON that config::model_to_json
/// writes.
///
/// origin: names the source of `json` in messages.
/// Throws: Error{checkpoint} naming `origin` and the problem.
[[nodiscard]] config::ModelConfig parse_description(std::string_view json,
                                                    const std::string& origin);

/// Returns the model settings in the file's metadata (kModelKey), or else those in a Hugging Face
/// config.json in the same folder; empty if neither describes the model.
///
/// Throws: Error{checkpoint} naming the file and what is wrong, as
///         config::hugging_face_model_in.
[[nodiscard]] std::optional<config::ModelConfig> described_model(const format::WeightFile& file);

/// Returns the settings of the checkpoint's model.
///
/// Throws: Error{checkpoint} naming the checkpoint.
[[nodiscard]] config::ModelConfig described_model(const Reader& reader);

}  // namespace dtrain::checkpoint::store
