// Suggestions for mistyped keys of settings.
#pragma once

#include <string_view>

namespace dtrain::config {

/// The key of the setting that `key` may have meant: the nearest whole key, else the one whose last
/// part is nearest ("width" means "model.width"); empty when none is close.
[[nodiscard]] std::string_view nearest_key(std::string_view key);

}  // namespace dtrain::config
