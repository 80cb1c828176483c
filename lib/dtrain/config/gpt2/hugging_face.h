// Converts between a GPT-2's settings and Hugging Face's config.json.
#pragma once

#include <string>

#include "dtrain/config/config.h"
#include "dtrain/config/family.h"

namespace dtrain::config::gpt2 {

/// Returns the settings in a config.json of model type gpt2. Absent keys get the default that
/// transformers has. Dropout is 0.
///
/// origin: the file, for messages.
/// Throws: Error{checkpoint} naming origin and the key, as HuggingFaceFormat::model_of.
[[nodiscard]] ModelConfig model_of(const Json& config, const std::string& origin);

/// The inverse, without dtype and tokens.
///
/// Throws: Error{usage} for a model without biases, which transformers lacks.
[[nodiscard]] Json config_of(const ModelConfig& model);

[[nodiscard]] const HuggingFaceFormat& hugging_face();

}  // namespace dtrain::config::gpt2
