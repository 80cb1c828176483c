// Enumerates the possible layouts of a job.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "dtrain/config/resolve.h"

namespace dtrain::planner {

/// Where a job is to run.
struct Site {
  std::int64_t ranks_per_node = 1;  ///< at most
  std::int64_t cores = 1;           ///< of a node, for its ranks' threads
  std::string device = "cpu";       ///< kind of device that each rank has
};

/// A layout as the flags that ask for it.
struct Layout {
  std::int64_t ranks = 1;
  std::vector<std::pair<std::string, std::string>> flags;  ///< "--strategy", "ddp"; in order

  /// "--strategy ddp --microbatch 4"
  [[nodiscard]] std::string text() const;
};

/// All layouts of `ranks` ranks that differ in memory, traffic or time: one axis or several, each
/// way of sharding state and, unless `asked` fixes it, each microbatch that is a power of two and
/// divides the global batch, which must be known. Some may not fit the model.
[[nodiscard]] std::vector<Layout> layouts_of(const config::Config& asked, std::int64_t ranks,
                                             const Site& site);

/// `asked` as if somebody had given this layout, before anything is resolved.
[[nodiscard]] config::Config given_layout(const config::Config& asked, const Layout& layout);

/// given_layout, resolved as on `site`.
///
/// Throws: Error{usage} saying why it does not fit.
[[nodiscard]] config::Config with_layout(const config::Config& asked, const Layout& layout,
                                         const Site& site);

/// The ranks to lay out: plan.ranks, or all numbers that share this machine's cores evenly.
[[nodiscard]] std::vector<std::int64_t> ranks_to_plan(const config::Config& asked,
                                                      std::int64_t cores);

}  // namespace dtrain::planner
