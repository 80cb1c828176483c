// Rank records for unit tests of the launcher.
#pragma once

#include <optional>

#include "launcher/local/rank.h"

namespace dtrain::testing {

/// A rank that is running, or has ended with this status.
inline launcher::Rank rank_of(int index, int node = 0,
                              std::optional<launcher::RankEnd> end = std::nullopt) {
  return {.index = index, .node = node, .pid = 100 + index, .end = end};
}

}  // namespace dtrain::testing
