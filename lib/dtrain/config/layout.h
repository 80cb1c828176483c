// The one table of strategies: which axis each takes its ranks along, and how ranks share state.
#pragma once

#include <cstdint>
#include <optional>

#include "dtrain/config/config.h"

namespace dtrain::config {

/// What a strategy makes of the ranks it has.
struct StrategyMeaning {
  enum class Ranks {
    dp,     ///< all see different data
    tp,     ///< all share the arithmetic of each block
    pp,     ///< all are stages
    given,  ///< --pp, --dp and --tp say it
  };
  Strategy strategy = Strategy::single;
  Ranks ranks = Ranks::dp;
  std::optional<DataAxisKind> data_axis = DataAxisKind::ddp;  ///< none: --data-axis says it
  /// Of one whose ranks are threads of one process: the strategy that does the same with processes.
  std::optional<Strategy> with_processes = {};

  [[nodiscard]] bool is_local() const { return with_processes.has_value(); }
};

[[nodiscard]] const StrategyMeaning& strategy_of(const LayoutConfig& layout);

[[nodiscard]] DataAxisKind data_axis_of(const LayoutConfig& layout);

/// The strategy of all ranks on this data axis.
[[nodiscard]] Strategy strategy_with(DataAxisKind data_axis);

/// What ranks that see different data hold a part of, instead of all of it.
enum class Sharding {
  none,              ///< nothing: DDP
  optimizer,         ///< the optimizer's state: ZeRO-1
  gradients,         ///< and gradients: ZeRO-2
  freed_parameters,  ///< and parameters, between backward and the next forward
  parameters,        ///< and parameters, whenever they are not used: ZeRO-3, FSDP
};

[[nodiscard]] Sharding sharding_of(const LayoutConfig& layout);

/// Whether units are gathered and freed within a step.
[[nodiscard]] constexpr bool gathers_units(Sharding sharding) {
  return sharding >= Sharding::freed_parameters;
}

/// Whether the gradients of a step, of grad_accum microbatches on each rank, are added in the very
/// order in which one rank would add them all, so that they have the same bits
/// (docs/determinism.md). layout: resolved.
[[nodiscard]] bool keeps_order_of_one_rank(const LayoutConfig& layout, std::int64_t grad_accum);

}  // namespace dtrain::config
