// Converts between model settings and Hugging Face's config.json.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "dtrain/config/config.h"

namespace dtrain::config {

/// Reads the model settings from a folder's config.json. Returns nothing if there is no such file,
/// or if it is not Hugging Face's: model_type is missing.
///
/// Throws: Error{checkpoint} naming the file and the key: not JSON, an unknown model_type, a value
///         of another type, a missing key, or one that requests arithmetic that dtrain does not
///         have.
[[nodiscard]] std::optional<ModelConfig> hugging_face_model_in(const std::string& folder);

/// Properties of exported weights that the model's settings do not determine.
struct ExportedWeights {
  /// float32, float64, bfloat16 or float16.
  Dtype dtype = Dtype::float32;
  /// The token at which generation ends.
  std::optional<std::int64_t> end_token = {};
  /// A folder whose config.json gives the token ids instead; empty if there is none.
  std::string token_ids_from = {};
};

/// Returns the text of config.json, which transformers 4 and 5 load alike.
///
/// Throws: Error{usage} naming the setting that Hugging Face's models lack;
///         Error{checkpoint} naming the config.json of token_ids_from if it cannot be read.
[[nodiscard]] std::string hugging_face_config(const ModelConfig& model,
                                              const ExportedWeights& weights);

/// Returns the text of generation_config.json.
///
/// Throws: as hugging_face_config, on token_ids_from.
[[nodiscard]] std::string hugging_face_generation_config(const ExportedWeights& weights);

}  // namespace dtrain::config
