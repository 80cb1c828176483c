// Enumerates the possible layouts of a job, predicts their memory and step time, and ranks them.
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

/// The nodes on which a job is to run.
struct Cluster {
  std::int64_t ranks_per_node = 1;  ///< upper bound
  std::int64_t cores = 1;           ///< CPU cores per node, for the ranks' threads
  std::string device = "cpu";       ///< device kind of every rank
};

/// A layout, as the flags that select it.
struct Layout {
  std::int64_t ranks = 1;
  /// Flags and values in order, such as {"--strategy", "ddp"}.
  std::vector<std::pair<std::string, std::string>> flags;

  /// Returns a text such as "--strategy ddp --microbatch 4".
  [[nodiscard]] std::string text() const;
};

/// Returns all layouts of `ranks` ranks that differ in memory, traffic or time: one or several
/// axes, each kind of sharding and, unless `requested` sets the microbatch, each microbatch that is
/// a power of two and divides the global batch. The global batch must be set. Some layouts may not
/// fit the model.
[[nodiscard]] std::vector<Layout> enumerate_layouts(const config::Config& requested,
                                                    std::int64_t ranks, const Cluster& cluster);

/// Replaces the layout of `requested`, without resolving it.
[[nodiscard]] config::Config apply_layout(const config::Config& requested, const Layout& layout);

/// Applies the layout and resolves the configuration for `cluster`.
///
/// Throws: Error{usage} saying why the layout does not fit.
[[nodiscard]] config::Config resolve_with_layout(const config::Config& requested,
                                                 const Layout& layout, const Cluster& cluster);

/// Returns the numbers of ranks to plan for: plan.ranks, or all that divide this machine's cores
/// evenly.
[[nodiscard]] std::vector<std::int64_t> rank_counts(const config::Config& requested,
                                                    std::int64_t cores);

/// The predicted cost of a layout: times of the slowest pipeline stage, memory of the largest.
struct Prediction {
  std::int64_t memory = 0;   ///< peak tensor bytes per rank
  double bytes_sent = 0;     ///< per step
  double bubble = 0;         ///< idle time over busy time of the pipeline
  double compute = 0;        ///< seconds per step for passes; the times below add to it
  double waiting = 0;        ///< seconds idle in the bubble
  double update = 0;         ///< seconds for norm, clipping and optimizer
  double communication = 0;  ///< seconds, assuming no overlap with computation

  [[nodiscard]] double seconds() const { return compute + waiting + update + communication; }
};

/// Rates of computation and communication: specified by the user, or measured on this machine.
struct Rates {
  double flops = 0;                  ///< per rank and second; 0: measured
  double link_bytes_per_second = 0;  ///< per rank, between nodes; 0: as within a node
  MachineRates* measured = nullptr;  ///< null: communication within a node is free

  /// Returns rates for memory predictions without measurements; times are meaningless.
  [[nodiscard]] Rates without_measurements() const {
    return {measured == nullptr ? flops : 1, link_bytes_per_second, nullptr};
  }
};

/// A feasible layout, with its prediction.
struct RankedLayout {
  Layout layout;
  config::Config config;  ///< resolved
  Prediction prediction;

  [[nodiscard]] double tokens_per_second() const {
    return static_cast<double>(config.batch.global * config.data.seq_len) / prediction.seconds();
  }
};

/// An infeasible layout: it does not fit the model or the memory.
struct RejectedLayout {
  Layout layout;
  std::string reason;
  /// Set if memory is insufficient: the resolved configuration, the bytes that a rank needs, and
  /// the available memory.
  std::optional<config::Config> config = {};
  std::int64_t memory = 0;
  parallel::AvailableMemory available = {};
};

/// The feasible layouts, ranked by speed, and the infeasible ones.
struct Ranking {
  /// Fastest first. Equally fast layouts, which occur if communication is free, keep the order of
  /// enumerate_layouts: ddp before sharded state, data parallelism before other axes.
  std::vector<RankedLayout> choices;
  std::vector<RejectedLayout> rejected;  ///< in the order of enumerate_layouts

  /// Returns, among the layouts rejected for insufficient memory, the one that needs the least; if
  /// there is none, the first rejected layout. `rejected` must not be empty.
  [[nodiscard]] const RejectedLayout& closest_rejected() const;
};

/// Predicts every layout for every number of ranks, each with its fastest microbatch. Of equally
/// fast microbatches it selects the smallest or, with specified rates, the largest up to
/// config::kMaxAutomaticMicrobatch, because larger ones use a GPU better.
///
/// requested: not resolved. Without a global batch all layouts share one, set by
///            config::resolve_auto_layout_batch for the largest number of ranks.
/// progress:  called with a description of each candidate before it is predicted.
[[nodiscard]] Ranking rank_layouts(const config::Config& requested, const Cluster& cluster,
                                   const Rates& rates, const MemoryLimits& memory,
                                   const std::function<void(const std::string&)>& progress);

}  // namespace dtrain::planner
