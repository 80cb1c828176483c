// Settings of a Llama model as Hugging Face's config.json: model types llama, mistral, qwen2, qwen3.
#pragma once

#include <string>

#include "dtrain/config/config.h"
#include "dtrain/config/family.h"

namespace dtrain::config::llama {

/// Reads a config.json whose model_type is one of hugging_face()'s. Absent keys have the values that
/// transformers gives them for this type; keys of transformers 4 and 5 are read. Dropout is 0.
///
/// origin: the file, for messages.
/// Throws: Error{checkpoint} naming origin and the key: as HuggingFaceFormat.
[[nodiscard]] ModelConfig model_of(const Json& config, const std::string& origin);

/// The inverse, without dtype and tokens. Sets the keys of transformers 4 and 5. The type is qwen3
/// with qk_norm, qwen2 with biases of queries, keys and values alone, else llama.
///
/// Throws: Error{usage} naming the setting that no such type has.
[[nodiscard]] Json config_of(const ModelConfig& model);

[[nodiscard]] const HuggingFaceFormat& hugging_face();

}  // namespace dtrain::config::llama
