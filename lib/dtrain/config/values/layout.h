// The meaning of each strategy: along which axis its ranks lie, and how they share state.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "dtrain/config/config.h"
#include "dtrain/config/values/mesh_shape.h"
#include "dtrain/config/values/values.h"

namespace dtrain::config {

/// The setting of an axis' size; 0: it follows from the others.
[[nodiscard]] std::int64_t& size_of(LayoutConfig& layout, Axis axis);

/// The sizes that the settings give.
[[nodiscard]] MeshShape mesh_of(const LayoutConfig& layout);

/// A strategy's use of the ranks it has.
struct StrategyMeaning {
  Strategy strategy = Strategy::single;
  std::optional<Axis> axis = Axis::dp;  ///< along which all ranks lie; none: the sizes are given
  std::optional<DataAxisKind> data_axis = DataAxisKind::ddp;  ///< none: --data-axis says it
  /// Set where the ranks are threads of one process: the strategy that uses processes instead.
  std::optional<Strategy> with_processes = {};

  [[nodiscard]] bool is_local() const { return with_processes.has_value(); }
};

[[nodiscard]] const StrategyMeaning& strategy_of(const LayoutConfig& layout);

[[nodiscard]] DataAxisKind data_axis_of(const LayoutConfig& layout);

/// The strategy of all ranks on this data axis.
[[nodiscard]] Strategy strategy_with(DataAxisKind data_axis);

/// The state that is divided among ranks that see different data; the rest is whole on each.
enum class Sharding {
  none,              ///< nothing: DDP
  optimizer,         ///< the optimizer's state: ZeRO-1
  gradients,         ///< and gradients: ZeRO-2
  freed_parameters,  ///< and parameters, between backward and the next forward
  parameters,        ///< and parameters, whenever they are not used: ZeRO-3, FSDP
};

[[nodiscard]] Sharding sharding_of(const LayoutConfig& layout);

/// True where units are gathered and freed within a step.
[[nodiscard]] constexpr bool gathers_units(Sharding sharding) {
  return sharding >= Sharding::freed_parameters;
}

/// True where the gradients of a step, of grad_accum microbatches on each rank, are added in the
/// order in which one rank would add them all, so that they have the same bits
/// (docs/guide/determinism.md). layout: resolved.
[[nodiscard]] bool keeps_order_of_one_rank(const LayoutConfig& layout, std::int64_t grad_accum);

/// How many stages there are, and how many microbatches each of them runs in a step.
struct PipelineSize {
  std::int64_t stages = 1;
  std::int64_t microbatches = 1;
};

/// Interleaved stages run their microbatches in groups of as many as there are stages.
///
/// microbatches_flag: the setting that gave their number, for the message.
/// Throws: Error{usage} naming --schedule-pp and what it does not go with.
void require_schedule_fits(const PipelineSetting& setting, const PipelineSize& size,
                           std::string_view microbatches_flag);

/// Every part of the model has at least one level. With a split, which is not empty, part i has
/// split[i] of them.
///
/// Throws: Error{usage} naming --pp, and --levels or --pp-split.
void require_levels_fit(const PipelineSetting& setting, std::int64_t stages,
                        const std::vector<std::int64_t>& split, std::int64_t num_levels);

}  // namespace dtrain::config
