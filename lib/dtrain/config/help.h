// Help and documentation, written from the schema.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "dtrain/config/schema.h"

namespace dtrain::config {

/// The flags of `command` in groups, with defaults and ranges, at most 100 columns wide.
[[nodiscard]] std::string flags_help(Command command);

/// Help of the most used flags of train, formatted as by flags_help.
[[nodiscard]] std::string most_used_flags();

/// Full help of the settings that `name` matches: a key ("train.lr"), its last part, a flag, with
/// or without dashes, or a group ("model"). Translates another program's name for a setting. Empty
/// for any other name.
///
/// Throws: Error{usage} with advice for another program's name that has no counterpart here.
[[nodiscard]] std::optional<std::string> setting_help(std::string_view name);

/// The names of flags, without dashes, and of settings, for suggestions.
[[nodiscard]] std::vector<std::string_view> setting_names();

/// docs/settings.md: every setting in one table a group.
[[nodiscard]] std::string settings_markdown();

}  // namespace dtrain::config
