// Configuration files: JSON with comments, nested objects or dotted keys, `extends`
// (docs/configuration.md).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "dtrain/config/schema.h"

namespace dtrain::config {

/// Applies the file at `path` over `config`, after the files that it extends.
///
/// Returns: the keys it sets that `command` does not use.
/// Throws:  Error{usage} naming the file and key: unreadable, not JSON, unknown or repeated keys,
///          wrong values, an `extends` cycle.
[[nodiscard]] std::vector<std::string> apply_file(const std::string& path, Command command,
                                                  Config& config);

/// Applies one JSON object of settings, nested or dotted; `origin` names it in messages. As
/// apply_file, without `extends`.
void apply_text(std::string_view text, const std::string& origin, Config& config);

}  // namespace dtrain::config
