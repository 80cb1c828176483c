// Settings of a BDH model as Hugging Face's config.json, and the model in Python.
#pragma once

#include <string>
#include <string_view>

#include "dtrain/config/config.h"
#include "dtrain/config/family.h"

namespace dtrain::config::bdh {

/// The model for transformers, which has no BDH: configuration_bdh.py and modeling_bdh.py, embedded by
/// the build.
extern const std::string_view kConfigurationBdh;
extern const std::string_view kModelingBdh;

/// As HuggingFaceFormat::model_of. Absent keys have the defaults of BdhConfig in Python.
[[nodiscard]] ModelConfig model_of(const Json& config, const std::string& origin);

/// As HuggingFaceFormat::config_of. Every BDH model has a config.json.
[[nodiscard]] Json config_of(const ModelConfig& model);

[[nodiscard]] const HuggingFaceFormat& hugging_face();

}  // namespace dtrain::config::bdh
