// Options of other launchers.
#pragma once

#include <string_view>

namespace launcher {

/// Advice on an option that other launchers have and dtrun lacks; empty if `name`, with its dashes,
/// is no such option.
[[nodiscard]] std::string_view advice_on_foreign(std::string_view name);

}  // namespace launcher
