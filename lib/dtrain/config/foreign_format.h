// Recognises configuration files that are not JSON.
#pragma once

#include <string>
#include <string_view>

namespace dtrain::config {

/// The likely format of a file's text that is no JSON, for a message: "YAML", "UTF-16 text";
/// empty where nothing is recognised.
[[nodiscard]] std::string_view foreign_format(const std::string& path, std::string_view text);

}  // namespace dtrain::config
