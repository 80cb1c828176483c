// Converts between a Llama's settings and Hugging Face's config.json, for the model types llama,
// mistral, qwen2 and qwen3.
#pragma once

#include <string>

#include "dtrain/config/config.h"
#include "dtrain/config/family.h"

namespace dtrain::config::llama {

/// Returns the settings in a config.json of one of these model types, as written by transformers 4
/// or 5. Absent keys get the default that transformers has for the type. Dropout is 0.
///
/// origin: the file, for messages.
/// Throws: Error{checkpoint} naming origin and the key, as HuggingFaceFormat::model_of.
[[nodiscard]] ModelConfig model_of(const Json& config, const std::string& origin);

/// The inverse, without dtype and tokens. Sets the keys of both transformers 4 and 5. The type is
/// qwen3 with --qk-norm, qwen2 with --attention-bias qkv, and llama otherwise.
///
/// Throws: Error{usage} naming the setting that none of these types supports.
[[nodiscard]] Json config_of(const ModelConfig& model);

[[nodiscard]] const HuggingFaceFormat& hugging_face();

}  // namespace dtrain::config::llama
