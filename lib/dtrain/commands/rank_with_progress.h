// Ranks layouts while a terminal shows how far it is.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "dtrain/planner/planner.h"

namespace dtrain::commands {

/// planner::rank_layouts for somebody who waits.
///
/// name:   of what the user asked for, in progress and errors: "plan".
/// Throws: Error{usage} with the reason of one layout if none fits.
[[nodiscard]] planner::Ranking rank_with_progress(
    const std::string& name, const config::Config& asked, const planner::Site& site,
    const planner::Rates& rates, const std::function<std::int64_t(std::int64_t)>& memory);

}  // namespace dtrain::commands
