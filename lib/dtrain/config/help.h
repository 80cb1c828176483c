// Help and documentation, written from the schema.
#pragma once

#include <string>

#include "dtrain/config/schema.h"

namespace dtrain::config {

/// The flags of `command` in groups, with defaults and ranges, at most 100 columns wide.
[[nodiscard]] std::string flags_help(Command command);

/// docs/settings.md: every setting in one table a group.
[[nodiscard]] std::string settings_markdown();

}  // namespace dtrain::config
