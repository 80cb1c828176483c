// Ranks the layouts of a job.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "dtrain/planner/prediction.h"

namespace dtrain::planner {

/// A layout that fits.
struct Choice {
  Layout layout;
  config::Config config;  ///< resolved
  Prediction prediction;

  [[nodiscard]] double tokens_per_second() const {
    return static_cast<double>(config.batch.global * config.data.seq_len) / prediction.seconds();
  }
};

struct Misfit {
  Layout layout;
  std::string reason;
  bool lacks_memory = false;
};

struct Ranking {
  std::vector<Choice> choices;  ///< the fastest first
  std::vector<Misfit> misfits;
};

/// Predicts every layout of the ranks to plan for, each with the microbatch that is fastest.
///
/// asked:    before anything is resolved. Without a global batch all layouts have the same one, as
///           config::resolve_open_batch sets it for the most ranks.
/// memory:   bytes that a rank of a job of so many ranks on a node may take.
/// progress: told what comes next; for people who wait.
[[nodiscard]] Ranking rank_layouts(const config::Config& asked, const Site& site,
                                   const Rates& rates,
                                   const std::function<std::int64_t(std::int64_t)>& memory,
                                   const std::function<void(const std::string&)>& progress);

}  // namespace dtrain::planner
