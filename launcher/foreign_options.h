// Options of other launchers.
#pragma once

#include <string_view>

namespace launcher {

/// What to do in place of an option that other launchers have and dtrun has not; empty: it is of
/// none. name: with dashes.
[[nodiscard]] std::string_view advice_on_foreign(std::string_view name);

}  // namespace launcher
