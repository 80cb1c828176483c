// Suggestions for mistyped keys of settings.
#pragma once

#include <string>
#include <string_view>

#include "dtrain/config/schema.h"

namespace dtrain::config {

/// The key of the setting that `key` may have meant: the nearest whole key, else the one whose last
/// part is nearest ("width" means "model.width"); empty when none is close.
[[nodiscard]] std::string_view nearest_key(std::string_view key);

/// Advice after `unknown setting "KEY"`: the setting that other programs call so, that the key
/// names a group of settings, or the nearest key. Empty where nothing is near.
[[nodiscard]] std::string advice_for_key(std::string_view key, Command command);

}  // namespace dtrain::config
