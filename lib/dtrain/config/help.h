// Help and documentation of settings, written from the schema.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "dtrain/config/schema.h"

namespace dtrain::config {

/// "learning rate after the warm-up (default 0.003; at least 0)".
[[nodiscard]] std::string described(const Setting& setting);

/// Full help of the settings that `name` matches: a key ("train.lr"), its last part, a flag, with
/// or without dashes, or a group ("model"). Translates another program's name for a setting. Empty
/// for any other name. columns: of a line.
///
/// Throws: Error{usage} with advice for another program's name that has no counterpart here.
[[nodiscard]] std::optional<std::string> setting_help(std::string_view name, std::size_t columns);

/// docs/settings.md: every setting in one table a group.
[[nodiscard]] std::string settings_markdown();

}  // namespace dtrain::config
