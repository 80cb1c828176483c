// Enumerates the possible layouts of a job (layouts.cpp), predicts their memory and the time of their
// steps, and ranks them.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dtrain/config/config.h"
#include "dtrain/config/resolve/resolve.h"
#include "dtrain/parallel/plan/fitting.h"
#include "dtrain/planner/internal/machine_rates.h"

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

/// Of the rank that takes most.
struct Prediction {
  std::int64_t memory = 0;   ///< bytes of tensors
  double bytes_sent = 0;     ///< in a step
  double bubble = 0;         ///< time without work over time with work, of a pipeline
  double compute = 0;        ///< seconds of a step; what follows comes on top
  double waiting = 0;        ///< in the bubble
  double update = 0;         ///< norm, clipping and optimizer
  double communication = 0;  ///< as far as nothing is computed meanwhile

  [[nodiscard]] double seconds() const { return compute + waiting + update + communication; }
};

/// Rates of computation and communication: given, or measured on this machine.
struct Rates {
  double flops = 0;                  ///< of a rank; 0: measured
  double link_bytes_per_second = 0;  ///< of a rank to other nodes; 0: as within one
  MachineRates* measured = nullptr;  ///< null: communication within a node is free

  /// The same where nothing may be measured: times mean nothing then.
  [[nodiscard]] Rates without_runs() const {
    return {measured == nullptr ? flops : 1, link_bytes_per_second, nullptr};
  }
};

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
  /// Where memory is missing: the layout resolved, the bytes that a rank takes, and what there is.
  std::optional<config::Config> config = {};
  std::int64_t memory = 0;
  parallel::MemoryRoom room = {};
};

struct Ranking {
  /// The fastest first; of equally fast ones, as where communication is free, the first in the order
  /// of layouts_of: ddp before what shards state, data axes before others.
  std::vector<Choice> choices;
  std::vector<Misfit> misfits;  ///< in the order of layouts_of

  /// The one that takes least of those that lack memory; where none does, the first. There must be
  /// one.
  [[nodiscard]] const Misfit& nearest_misfit() const;
};

/// Predicts every layout of the ranks to plan for, each with the microbatch that is fastest. Of
/// equally fast ones it is the smallest, where rates are given the largest up to
/// config::kMaxAutomaticMicrobatch: larger ones use a GPU better.
///
/// asked:    before anything is resolved. Without a global batch all layouts have the same one, as
///           config::resolve_auto_layout_batch sets it for the most ranks.
/// progress: told what comes next; for people who wait.
[[nodiscard]] Ranking rank_layouts(const config::Config& asked, const Site& site,
                                   const Rates& rates, const MemoryLimits& memory,
                                   const std::function<void(const std::string&)>& progress);

}  // namespace dtrain::planner
