#include "dtrain/commands/rank_with_progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include "dtrain/base/error.h"
#include "dtrain/metrics/console.h"

namespace dtrain::commands {

planner::Ranking rank_with_progress(const std::string& name, const config::Config& asked,
                                    const planner::Site& site, const planner::Rates& rates,
                                    const std::function<std::int64_t(std::int64_t)>& memory) {
  metrics::Console console({.live = ::isatty(STDERR_FILENO) == 1});
  const planner::Ranking ranking =
      planner::rank_layouts(asked, site, rates, memory, [&](const std::string& layout) {
        console.show_progress(fmt::format("{}: {}", name, layout));
      });
  console.show_progress("");
  if (ranking.choices.empty()) {
    const planner::Misfit& first = ranking.misfits.front();
    base::fail(base::ErrorKind::usage, "{}: no layout fits: {}: {}", name, first.layout.text(),
               first.reason);
  }
  return ranking;
}

}  // namespace dtrain::commands
